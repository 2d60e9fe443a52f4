#include "runtime/ddp/device_times.h"

#include <algorithm>

namespace lockstep::ddp {

void DeviceTimes::begin() {
  current_ = {};
  current_.began = clocks_.computing->mark();
}

void DeviceTimes::launching() {
  current_.launches.push_back({.asked = clocks_.computing->mark(), .ended = nullptr});
}

// A mark is null if the device has failed. In each queue marks are passed in their order.
bool DeviceTimes::reached(const Marks& marks) const {
  const auto passed = [](profile::DeviceClock& clock, const Mark& mark) {
    return mark && clock.reached(mark);
  };
  return marks.began && passed(*clocks_.computing, marks.ended) &&
         std::all_of(marks.launches.begin(), marks.launches.end(), [&](const DeviceLaunch& launch) {
           return launch.asked && passed(*clocks_.communicating, launch.ended);
         });
}

std::optional<DeviceBackward> DeviceTimes::take() {
  if (finished_.size() <= kAge) return std::nullopt;
  const Marks marks = std::move(finished_.front());
  finished_.pop_front();
  DeviceBackward backward{.known = reached(marks), .reductions = {}};
  const auto since_begin = [&](const Mark& mark) {
    return backward.known ? clocks_.computing->ns_between(marks.began, mark) : 0;
  };
  for (const DeviceLaunch& launch : marks.launches) {
    backward.reductions.push_back(
        {.asked_ns = since_begin(launch.asked), .ended_ns = since_begin(launch.ended)});
  }
  backward.ended_ns = since_begin(marks.ended);
  return backward;
}

void DeviceCollective::end(std::size_t bytes) {
  running_.push_back({bytes, std::move(asked_), clocks_.communicating->mark()});
  for (; !running_.empty(); running_.pop_front()) {
    const DeviceLaunch& oldest = running_.front();
    if (!oldest.asked || !oldest.ended) continue;
    if (!clocks_.communicating->reached(oldest.ended)) return;
    timer_.add_collective(collective_, oldest.bytes,
                          clocks_.computing->ns_between(oldest.asked, oldest.ended));
  }
}

}  // namespace lockstep::ddp
