#include "examples/done_on_all_ranks.h"

#include <fmt/format.h>

#include <cstdio>

#include "common/process.h"
#include "runtime/comm/communicator.h"

namespace lockstep {

bool done_on_all_ranks(World& world, std::string_view program, std::string_view label,
                       const std::function<void()>& work) {
  const auto failure = comm::run_on_all_ranks(world.communicator(), label, work);
  if (failure && failure->rank == world.rank()) {
    fmt::print(stderr, "{}: {}: {}\n", program, rank_name(world.rank(), world.node_name()), failure->reason);
  }
  return !failure;
}

}  // namespace lockstep
