// Other users connect to srun's helper, and do not keep the nodes of the step out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "common/leaf/descriptors.h"
#include "common/sockets.h"
#include "tests/unit/staging/rendezvous/rendezvous_world.h"

namespace lockstep::transfer {
namespace {

using testing::IsEmpty;

// Holds connections that send nothing, or one byte, and opens those again that srun drops.
class Attacker {
 public:
  Attacker(int port, std::size_t connections, std::string bytes = "")
      : port_(port), connections_(connections), bytes_(std::move(bytes)) {
    open();
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        std::vector<pollfd> wait;
        for (const UniqueFd& connection : held_) wait.push_back({connection.get(), POLLIN, 0});
        ::poll(wait.data(), wait.size(), 10);
        for (std::size_t i = wait.size(); i-- > 0;) {
          if (wait[i].revents == 0) continue;
          held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
          ++dropped_;
        }
        open();
      }
    });
  }
  std::size_t dropped() const { return dropped_; }

 private:
  void open() {
    while (held_.size() < connections_) {
      held_.push_back(connect_to({"127.0.0.1"}, port_, milliseconds(10'000)));
      [[maybe_unused]] const ssize_t put =
          ::send(held_.back().get(), bytes_.data(), bytes_.size(), MSG_NOSIGNAL);
    }
  }

  const int port_;
  const std::size_t connections_;
  const std::string bytes_;
  std::vector<UniqueFd> held_;
  std::atomic<std::size_t> dropped_ = 0;
  std::jthread thread_;  // the last member: it uses the others
};

// With both ends in this process.
bool has_descriptors(std::size_t connections) {
  raise_open_files_limit();
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > 2 * connections + 100;
}

TEST(Rendezvous, AnAttackerDoesNotKeepTheNodesOfALargeStepOut) {
  constexpr std::uint32_t kNodes = 1024;
  constexpr std::size_t kAttacks = 900;
  if (!has_descriptors(kNodes + kAttacks)) GTEST_SKIP() << "needs more file descriptors";
  Srun srun;
  const Attacker attacker(srun.port(), kAttacks);
  std::vector<std::unique_ptr<Rendezvous>> nodes(kNodes);
  std::atomic<std::uint32_t> next = 0;
  std::vector<std::future<void>> joining;
  for (int i = 0; i < 8; ++i) {
    joining.push_back(std::async(std::launch::async, [&] {
      for (std::uint32_t id = next++; id < kNodes; id = next++)
        nodes[id] = std::make_unique<Rendezvous>(srun.address(), hello(id, kNodes), kIgnore);
    }));
  }
  for (std::future<void>& one : joining) one.get();
  std::vector<std::future<Verdict>> ends;
  for (const auto& node : nodes)
    ends.push_back(std::async(std::launch::async, [&] { return node->agree({}); }));
  for (std::future<Verdict>& end : ends) EXPECT_TRUE(end.get().good);
  EXPECT_THAT(srun.lines(), IsEmpty());
  while (attacker.dropped() == 0) std::this_thread::yield();
}

TEST(Rendezvous, ANodeThatFindsNoRoomConnectsAgain) {
  constexpr std::size_t kAll = 1024;
  if (!has_descriptors(kAll)) GTEST_SKIP() << "needs more file descriptors";
  Srun srun;
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i < kAll; ++i)
    silent.push_back(connect_to({"127.0.0.1"}, srun.port(), milliseconds(10'000)));
  expect_two_nodes_agree(srun);
}

TEST(Rendezvous, AnAddressThatTakesAllItsRoomLeavesThatOfTheOthers) {
  constexpr std::size_t kMore = 1100;
  if (!has_descriptors(kMore)) GTEST_SKIP() << "needs more file descriptors";
  const UniqueFd route(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in anywhere{};
  anywhere.sin_family = AF_INET;
  anywhere.sin_port = htons(9);
  anywhere.sin_addr.s_addr = htonl(0xC0000201);  // 192.0.2.1, of no machine
  if (::connect(route.get(), reinterpret_cast<const sockaddr*>(&anywhere), sizeof anywhere) != 0)
    GTEST_SKIP() << "needs an address beside 127.0.0.1";
  Srun srun;
  const Attacker attacker(srun.port(), kMore, "\x16");  // the beginning of TLS
  RendezvousAddress address = srun.address();
  address.hosts = {local_address(route)};
  std::future<Verdict> first = std::async(std::launch::async, [&] {
    return Rendezvous(address, hello(0, 2), kIgnore).agree({true, ""});
  });
  EXPECT_TRUE(Rendezvous(address, hello(1, 2), kIgnore).agree({true, ""}).good);
  EXPECT_TRUE(first.get().good);
  EXPECT_GT(attacker.dropped(), 0U);
}

}  // namespace
}  // namespace lockstep::transfer
