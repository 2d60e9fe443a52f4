#include "runtime/data/loader_agreement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
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

// Enough for a sample's name and what is wrong with it.
constexpr std::size_t kReason = 400;

using Reason = std::array<char, kReason>;

// Its first line: LibTorch appends a stack of frames.
Reason reason_of(const std::exception_ptr& failed) {
  std::string text;
  try {
    std::rethrow_exception(failed);
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "something that is no std::exception was thrown";
  }
  text = text.substr(0, text.find('\n'));
  Reason reason{};
  text.copy(reason.data(), kReason - 1);
  return reason;
}

}  // namespace

void made_on_all_ranks(comm::Communicator& communicator, const std::function<void()>& make) {
  std::exception_ptr failed;
  try {
    make();
  } catch (...) {
    failed = std::current_exception();
  }
  std::uint8_t mine = failed ? 1 : 0;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather({&mine, 1, comm::DataType::u8}, all.data(), "whether the loaders are made")->wait();
  const auto first = std::find(all.begin(), all.end(), 1);
  if (first == all.end()) return;
  const auto whose = static_cast<int>(first - all.begin());
  Reason reason{};
  if (communicator.rank() == whose) reason = reason_of(failed);
  communicator.broadcast({reason.data(), kReason, comm::DataType::u8}, whose, "why a loader was not made")
      ->wait();
  if (failed) std::rethrow_exception(failed);
  fail("rank {} could not make its loader: {}", whose, std::string_view(reason.data()));
}

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
