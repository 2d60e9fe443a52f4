#include "plugin/spank/helper_cpus.h"

#include <unistd.h>

#include <cstring>

namespace lockstep::spank {
namespace {

cpu_set_t without(const cpu_set_t& from, const cpu_set_t& what) {
  cpu_set_t rest;
  CPU_AND(&rest, &from, &what);
  CPU_XOR(&rest, &from, &rest);
  return rest;
}

}  // namespace

std::optional<cpu_set_t> step_cpus(std::uint32_t granted) {
  cpu_set_t bound;
  if (::sched_getaffinity(0, sizeof bound, &bound) != 0) return std::nullopt;
  // The kernel cuts what is asked for down to what the control group has.
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);
  cpu_set_t possible;
  CPU_ZERO(&possible);
  const bool known = ::sched_setaffinity(0, sizeof all, &all) == 0 &&
                     ::sched_getaffinity(0, sizeof possible, &possible) == 0;
  ::sched_setaffinity(0, sizeof bound, &bound);
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (!known || (CPU_COUNT(&possible) >= online && static_cast<long>(granted) < online)) return std::nullopt;
  return possible;
}

cpu_set_t spare_cpus(const cpu_set_t& step, const cpu_set_t& all_masks, const cpu_set_t& computing) {
  const cpu_set_t free = without(step, all_masks);
  if (CPU_COUNT(&free) > 0) return free;
  const cpu_set_t loaders = without(step, computing);
  return CPU_COUNT(&loaders) > 0 ? loaders : step;
}

}  // namespace lockstep::spank
