#include "runtime/data/loader_agreement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/error.h"
#include "runtime/comm/communicator.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kShown = 80;

// FNV-1a: not against people, against mistakes.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char character : text) {
    hash ^= static_cast<unsigned char>(character);
    hash *= 0x100000001b3;
  }
  return hash;
}

}  // namespace

void check_agreement(comm::Communicator& communicator, const std::vector<Agreed>& agreed) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<std::uint64_t> mine;
  for (const Agreed& one : agreed) mine.push_back(hash_of(one.value));
  const std::size_t bytes = mine.size() * sizeof(std::uint64_t);
  std::vector<std::uint64_t> all(ranks * mine.size());
  communicator
      .all_gather({mine.data(), bytes, comm::DataType::u8}, all.data(), "what the loaders were given")
      ->wait();
  for (std::size_t what = 0; what < agreed.size(); ++what) {
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      if (all[rank * agreed.size() + what] == all[what]) continue;
      // All ranks come here, for the same value.
      std::array<char, kShown> shown{};
      std::copy_n(agreed[what].value.begin(), std::min(kShown, agreed[what].value.size()), shown.begin());
      std::vector<char> values(ranks * kShown);
      communicator.all_gather({shown.data(), kShown, comm::DataType::u8}, values.data(), "what differs")
          ->wait();
      const auto value_of = [&](std::size_t whose) {
        const std::string_view value(values.data() + whose * kShown, kShown);
        return value.substr(0, value.find('\0'));
      };
      fail("the loaders must be the same on all ranks, but {} is '{}' on rank {} and '{}' on rank 0",
           agreed[what].name, value_of(rank), rank, value_of(0));
    }
  }
}

}  // namespace lockstep::data
