#include "tests/unit/staging/every_call.h"

#include <gtest/gtest.h>

#include "tests/unit/staging/staging_world.h"

namespace lockstep::staging_test {
namespace {

/// Calls `round` with 1, 2, … until it returns false or the test fails.
void for_every_call(const std::function<bool(int call)>& round) {
  constexpr int kMaxCalls = 1000;
  for (int call = 1; call < kMaxCalls; ++call) {
    SCOPED_TRACE(fmt::format("call {}", call));
    if (!round(call) || testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << "the calls do not end";
}

}  // namespace

int kill_at_every_call(const EveryCall& every) {
  int kills = 0;
  for_every_call([&](int call) {
    every.prepare();
    const int code = in_child([&] {
      KilledAt killed(call, every.reads);
      every.work(killed);
    });
    every.check();
    kills += code == kKilled ? 1 : 0;
    EXPECT_TRUE(code == kKilled || code == 0) << code;
    return code == kKilled;
  });
  return kills;
}

int fail_at_every_call(const EveryCall& every, int error) {
  int refusals = 0;
  for_every_call([&](int call) {
    every.prepare();
    FailsAt fails(call, error, every.reads);
    try {
      every.work(fails);
    } catch (const Error& thrown) {
      ++refusals;
      every.refused(thrown);
    }
    const bool failed = fails.failed();
    every.check();
    return failed;
  });
  return refusals;
}

}  // namespace lockstep::staging_test
