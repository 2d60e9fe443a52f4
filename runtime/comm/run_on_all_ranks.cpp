#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/failure.h"

namespace lockstep::comm {

std::optional<RankFailure> run_on_all_ranks(Communicator& communicator, std::string_view label,
                                            const std::function<void()>& work) {
  RankFailure failure;
  try {
    work();
  } catch (...) {
    failure.own = std::current_exception();
  }
  std::uint8_t failed = failure.own ? 1 : 0;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather({&failed, 1, DataType::u8}, all.data(), label)->wait();
  const auto first = std::find(all.begin(), all.end(), 1);
  if (first == all.end()) return std::nullopt;
  failure.rank = static_cast<int>(first - all.begin());
  std::array<char, 400> reason{};
  if (communicator.rank() == failure.rank) first_line_of(failure.own).copy(reason.data(), reason.size() - 1);
  communicator.broadcast({reason.data(), reason.size(), DataType::u8}, failure.rank, label)->wait();
  failure.reason = reason.data();
  return failure;
}

}  // namespace lockstep::comm
