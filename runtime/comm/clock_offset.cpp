#include "runtime/comm/clock_offset.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace lockstep::comm {

ClockOffset measure_clock_offset(Communicator& communicator, const std::function<std::uint64_t()>& clock) {
  constexpr std::size_t kTries = 16;
  // When this rank entered and left each all-gather.
  std::array<std::int64_t, 2 * kTries> mine{};
  for (std::size_t i = 0; i < kTries; ++i) {
    std::int64_t ignored = 0;
    std::vector<std::int64_t> all(static_cast<std::size_t>(communicator.size()));
    mine[2 * i] = static_cast<std::int64_t>(clock());
    communicator.all_gather({&ignored, 1, DataType::i64}, all.data(), "a measurement of clocks")->wait();
    mine[2 * i + 1] = static_cast<std::int64_t>(clock());
  }
  std::array<std::int64_t, 2 * kTries> first = mine;
  communicator.broadcast({first.data(), first.size(), DataType::i64}, 0, "the clock of rank 0")->wait();
  ClockOffset offset{.low = std::numeric_limits<std::int64_t>::min(),
                     .high = std::numeric_limits<std::int64_t>::max()};
  for (std::size_t i = 0; i < kTries; ++i) {
    offset.low = std::max(offset.low, mine[2 * i] - first[2 * i + 1]);
    offset.high = std::min(offset.high, mine[2 * i + 1] - first[2 * i]);
  }
  return communicator.rank() == 0 ? ClockOffset{} : offset;
}

}  // namespace lockstep::comm
