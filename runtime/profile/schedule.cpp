#include "runtime/profile/schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "common/error.h"

namespace lockstep::profile {

Schedule::State Schedule::state(std::uint64_t step) const {
  const std::uint64_t cycle = wait + warmup + active;
  if (step / cycle >= repeat || step % cycle < wait) return State::off;
  return step % cycle < wait + warmup ? State::warmup : State::active;
}

std::uint64_t Schedule::cycles_ended(std::uint64_t steps) const {
  return std::min(repeat, steps / (wait + warmup + active));
}

Schedule parse_schedule(std::string_view text) {
  Schedule schedule{.active = 0};
  std::array<std::pair<std::string_view, std::uint64_t*>, 4> keys = {{{"wait", &schedule.wait},
                                                                      {"warmup", &schedule.warmup},
                                                                      {"active", &schedule.active},
                                                                      {"repeat", &schedule.repeat}}};
  for (std::string_view left = text; !left.empty();) {
    const std::string_view part = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), part.size() + 1));
    if (part == "stop" && !std::exchange(schedule.stop, true)) continue;
    if (part == "shapes" && !std::exchange(schedule.shapes, true)) continue;
    const std::string_view name = part.substr(0, part.find(':'));
    const std::string_view number = part.substr(std::min(part.size(), name.size() + 1));
    auto* const key = std::find_if(keys.begin(), keys.end(), [&](const auto& k) { return k.first == name; });
    const bool known = key != keys.end() && key->second != nullptr;
    std::uint64_t value = 0;
    const auto read = std::from_chars(number.data(), number.data() + number.size(), value);
    if (!known || read.ec != std::errc() || read.ptr != number.data() + number.size()) {
      fail_usage(
          "the profile schedule '{}' has the part '{}': write wait:W,warmup:U,active:A,repeat:R,shapes,stop, each once, with whole numbers; only active is required",
          text, part);
    }
    *std::exchange(key->second, nullptr) = value;
  }
  constexpr std::uint64_t kMax = 1'000'000;
  if (schedule.active == 0 || schedule.repeat == 0) {
    fail_usage("the profile schedule must have active and repeat of at least 1, such as wait:10,active:3");
  }
  if (std::max({schedule.wait, schedule.warmup, schedule.active, schedule.repeat}) > kMax) {
    fail_usage("the numbers of a profile schedule must not exceed {}", kMax);
  }
  return schedule;
}

}  // namespace lockstep::profile
