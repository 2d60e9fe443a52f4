// The totals of collective operations in the record of this rank.
#pragma once

#include <array>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "common/clock.h"
#include "exporters/record/record.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::testing {

// Of a sample that is taken after the call; a thread takes one each second.
inline std::array<record::CollectiveTotals, record::kCollectives> totals_now() {
  const std::uint64_t called = monotonic_ns();
  for (;;) {
    const record::Snapshot snapshot = record::Reader(world().timer().file()).read();
    if (snapshot.resources && snapshot.resources->sampled_ns > called) return snapshot.resources->collectives;
    if (seconds_between(called, monotonic_ns()) > 10) throw std::runtime_error("no sample in 10 s");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace lockstep::testing
