#include "runtime/data/loader_agreement.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/error.h"
#include "runtime/comm/communicator.h"

namespace lockstep::data {

constexpr std::size_t kMaxValueShown = 80;

void check_agreement(comm::Communicator& communicator, const std::vector<LoaderInput>& inputs) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<std::uint64_t> mine;
  for (const LoaderInput& input : inputs) mine.push_back(XXH3_64bits(input.value.data(), input.value.size()));
  const std::size_t bytes = mine.size() * sizeof(std::uint64_t);
  std::vector<std::uint64_t> all(ranks * mine.size());
  communicator.all_gather({mine.data(), bytes, comm::DataType::u8}, all.data(), "the loaders' inputs")
      ->wait();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      if (all[rank * inputs.size() + i] == all[i]) continue;
      // All ranks get here for the same value.
      std::array<char, kMaxValueShown> shown{};
      std::copy_n(inputs[i].value.begin(), std::min(kMaxValueShown, inputs[i].value.size()), shown.begin());
      std::vector<char> values(ranks * kMaxValueShown);
      communicator
          .all_gather({shown.data(), kMaxValueShown, comm::DataType::u8}, values.data(),
                      "an input that differs")
          ->wait();
      const auto value_of = [&](std::size_t of_rank) {
        const std::string_view value(values.data() + of_rank * kMaxValueShown, kMaxValueShown);
        return value.substr(0, value.find('\0'));
      };
      fail("the loaders must be the same on all ranks, but {} is '{}' on rank {} and '{}' on rank 0",
           inputs[i].name, value_of(rank), rank, value_of(0));
    }
  }
}

}  // namespace lockstep::data
