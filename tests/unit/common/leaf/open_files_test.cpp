#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <string>

#include "common/error.h"
#include "common/leaf/descriptors.h"
#include "common/sockets.h"
#include "tests/unit/message_of.h"

namespace lockstep {
namespace {

// Restores the limit at its end.
class OpenFiles : public ::testing::Test {
 protected:
  OpenFiles() { ::getrlimit(RLIMIT_NOFILE, &before_); }
  ~OpenFiles() override { ::setrlimit(RLIMIT_NOFILE, &before_); }
  void set(rlim_t soft) const {
    rlimit limit = before_;
    limit.rlim_cur = soft;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  rlimit before_{};
};

TEST_F(OpenFiles, LimitIsRaisedToTheHardLimit) {
  set(before_.rlim_max / 2);
  raise_open_files_limit();
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, before_.rlim_max);
}

TEST_F(OpenFiles, WithoutFreeDescriptorsConnectingAndListeningSaySo) {
  int port = 0;
  UniqueFd listener = listen_on(0, 0, port);
  const int next = UniqueFd(::socket(AF_INET, SOCK_STREAM, 0)).get();
  set(static_cast<rlim_t>(next));
  const auto expect = ::testing::HasSubstr("no file descriptor is left: raise the limit of open files");
  EXPECT_THAT(message_of([&] { connect_to({"127.0.0.1"}, port, std::chrono::milliseconds(1000)); }), expect);
  EXPECT_THAT(message_of([&] { listen_on(0, 0, port); }), expect);
}

}  // namespace
}  // namespace lockstep
