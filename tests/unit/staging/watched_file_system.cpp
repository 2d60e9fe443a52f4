#include "tests/unit/staging/watched_file_system.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/unit/staging/staging_world.h"

namespace lockstep::staging_test {

bool WatchedFileSystem::watches(Kind kind) const {
  switch (kind) {
    case Kind::read:
    case Kind::syncfs:
      return reads_;
    case Kind::sync_file_range:
    case Kind::lchown:
    case Kind::utimensat:
    case Kind::lstat:
      return false;
    default:
      return true;
  }
}

ssize_t WatchedFileSystem::call(const FileCall& call) {
  // A killed process loses nothing that it has written, and this is quick.
  const bool syncs = call.kind == Kind::fsync || call.kind == Kind::syncfs;
  if (watches(call.kind)) {
    if (call.kind == Kind::write) {
      FileCall half = call;
      half.size /= 2;
      if (FileSystem::call(half) < 0) return -1;
    }
    if (const int error = before_(++calls_, call); error != 0) {
      errno = error;
      return -1;
    }
  }
  return syncs ? 0 : FileSystem::call(call);
}

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
