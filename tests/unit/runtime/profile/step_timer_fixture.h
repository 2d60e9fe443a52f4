// A timer's folder and environment, and work of known length.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <cstdint>
#include <numeric>

#include "common/clock.h"
#include "exporters/record/record.h"
#include "runtime/profile/step_timer.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::profile {

using record::Reader;
using record::Snapshot;

inline void work_for_us(std::uint64_t us) {
  const std::uint64_t end = monotonic_ns() + us * 1000;
  while (monotonic_ns() < end) {
  }
}

inline std::uint64_t ns(const Times& times, Phase phase) {
  return times.phase_ns[record::index(phase)];
}

inline std::uint64_t sum(const Times& times) {
  return std::accumulate(times.phase_ns.begin(), times.phase_ns.end(), std::uint64_t{0});
}

class StepTimerTest : public ::testing::Test {
 protected:
  StepTimerTest() {
    for (const char* name : {"LOCKSTEP_RECORD", "LOCKSTEP_REPORT_DIR", "LOCKSTEP_METRICS"}) ::unsetenv(name);
    ::setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
  }

  Identity identity_ = {.job_id = 5, .step_id = 1, .rank = 3, .size = 4, .node = "n1", .program = "train"};
  lockstep::testing::TemporaryFolder folder_;
};

}  // namespace lockstep::profile
