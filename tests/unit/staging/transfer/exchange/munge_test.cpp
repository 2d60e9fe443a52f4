// The exchange on nodes that have munge. The tests start a separate, real munged.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "common/files.h"
#include "staging/transfer/exchange/peer_link.h"
#include "tests/unit/staging/transfer/nodes_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using staging_test::in_child;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kMunged = "/usr/sbin/munged";
constexpr uid_t kOther = 4242;

/// Gives this process a separate /run, without the machine's munged.
void own_run() {
  have_own_mounts();
  if (::mount("tmpfs", "/run", "tmpfs", 0, "mode=0755") != 0 || ::mkdir("/run/munge", 0755) != 0) {
    fail_errno("mount");
  }
}

/// A munged at the place where libmunge looks for it, for the processes that join().
class Munged {
 public:
  explicit Munged(const fs::path& folder) {
    write_file_atomically(folder / "munge.key", std::string(1024, 'k'));
    fs::permissions(folder / "munge.key", fs::perms::owner_read | fs::perms::owner_write);
    pid_ = staging_test::start_child([&] {
      own_run();
      const int log = ::open((folder / "munged.out").c_str(), O_WRONLY | O_CREAT, 0600);
      ::dup2(log, STDERR_FILENO);
      const std::string key = "--key-file=" + (folder / "munge.key").string();
      ::execl(kMunged, kMunged, "--foreground", "--force", key.c_str(), "--pid-file=/run/munge/pid",
              "--log-file=/run/munge/log", "--seed-file=/run/munge/seed",
              "--socket=/run/munge/munge.socket.2", nullptr);
      fail_errno("munged");
    });
    // It runs in a separate mount namespace, so a process that checks whether it answers must join that too.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (in_child([&] {
             join();
             if (!munge_encode("x")) ::_exit(1);
           }) != 0) {
      if (::waitpid(pid_, nullptr, WNOHANG) != 0 || std::chrono::steady_clock::now() > until)
        fail("munged does not run: {}", staging_test::read(folder / "munged.out"));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  ~Munged() {
    ::kill(pid_, SIGTERM);
    staging_test::end_of(pid_);
  }
  Munged(const Munged&) = delete;
  Munged& operator=(const Munged&) = delete;

  /// Lets this process see that munged.
  void join() const {
    const UniqueFd space = open_file(fmt::format("/proc/{}/ns/mnt", pid_), O_RDONLY);
    if (::setns(space.get(), CLONE_NEWNS) != 0) fail_errno("setns");
  }

 private:
  pid_t pid_ = 0;
};

class ExchangeMunge : public NodesTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to start a separate munged and to be several users";
    if (!fs::exists(kMunged)) GTEST_SKIP() << "munged is not installed (package munge)";
    if (in_child(own_run) != 0) GTEST_SKIP() << "needs a mount namespace";
    munged_ = std::make_unique<Munged>(folder_);
  }
  NodeChange joined() const {
    NodeChange change;
    change.before = [this] { munged_->join(); };
    return change;
  }
  std::unique_ptr<Munged> munged_;
};

TEST_F(ExchangeMunge, NodesOfOneUserAcceptEachOther) {
  const fs::path pack = make_large_pack("p", 300);
  const auto ends = put_on(3, pack, {{0, joined()}, {1, joined()}, {2, joined()}});
  EXPECT_EQ(expect_good(ends, pack), size_of(pack));
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), IsEmpty());
}

TEST_F(ExchangeMunge, NodeOfAnotherUserIsRefusedEvenWithTheKey) {
  const fs::path pack = make_large_pack("p", 300);
  fs::permissions(folder_, fs::perms::all);
  NodeChange other;
  other.host = "127.0.0.2";
  other.before = [this] {
    munged_->join();
    if (::setgid(kOther) != 0 || ::setuid(kOther) != 0) fail_errno("setuid");
  };
  const auto ends = put_on(3, pack, {{0, joined()}, {1, other}, {2, joined()}});
  expect_good(ends, pack);
  EXPECT_THAT(ends[2].note(), HasSubstr("gave up on 127.0.0.2 (the peer runs as another user)"));
  EXPECT_THAT(ends[0].note(), Not(HasSubstr("gave up on 127.0.0.1")));
  // The refused node got no data either.
  EXPECT_EQ(ends[1].result.at("from_peers"), 0U);
}

TEST_F(ExchangeMunge, NodeWithoutMungeIsRefusedByThoseThatHaveIt) {
  const fs::path pack = make_large_pack("p", 300);
  NodeChange without;
  without.host = "127.0.0.2";
  without.before = own_run;
  const auto ends = put_on(3, pack, {{0, joined()}, {1, without}, {2, joined()}});
  expect_good(ends, pack);
  EXPECT_THAT(ends[2].note(), HasSubstr("gave up on 127.0.0.2 (the peer runs as another user)"));
  EXPECT_EQ(ends[1].result.at("from_peers"), 0U);
}

// It passes on all lines, credentials too: those prove the exporter of another connection.
TEST_F(ExchangeMunge, AProcessWithTheKeyBetweenTwoNodesIsNoticed) {
  const auto sockets = [] {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail_errno("socketpair");
    return std::array{UniqueFd(ends[0]), UniqueFd(ends[1])};
  };
  EXPECT_EQ(in_child([&] {
              munged_->join();
              auto near = sockets();
              auto far = sockets();
              const auto refused = [](UniqueFd& socket, PeerLink::Role role) {
                try {
                  PeerLink(std::move(socket), role, "key", "7.0", {}).handshake(1);
                  return std::string("accepted");
                } catch (const PeerError& error) {
                  return std::string(error.what());
                }
              };
              auto server = std::async([&] { return refused(far[1], PeerLink::Role::server); });
              auto client = std::async([&] { return refused(near[0], PeerLink::Role::client); });
              SecureConnection to_client(std::move(near[1]), "exchange 7.0", "key");
              SecureConnection to_server(std::move(far[0]), "exchange 7.0", "key");
              to_client.accept(std::chrono::seconds(60));
              to_server.connect("1", std::chrono::seconds(60));
              for (auto [from, to] : {std::pair(&to_client, &to_server), std::pair(&to_server, &to_client)}) {
                to->send_line(from->receive_line(8192, std::chrono::seconds(60)).value());
              }
              for (const std::string& end : {server.get(), client.get()}) {
                if (end != "the peer runs as another user") fail("{}", end);
              }
            }),
            0);
}

TEST_F(ExchangeMunge, ACredentialIsValidOnceAndForItsTextOnly) {
  EXPECT_EQ(in_child([&] {
              munged_->join();
              const std::string credential = munge_encode("this").value();
              if (munge_verify(munge_encode("that").value(), "this"))
                fail("a credential for another text was accepted");
              if (!munge_verify(credential, "this")) fail("a valid credential was refused");
              if (munge_verify(credential, "this")) fail("a credential was accepted twice");
              if (munge_verify("-", "this") || munge_verify("", "this"))
                fail("a text that is not a credential was accepted");
            }),
            0);
}

TEST_F(ExchangeMunge, OnlyTheSameUserCanVerifyACredential) {
  EXPECT_EQ(in_child([&] {
              munged_->join();
              const std::string credential = munge_encode("this").value();
              if (::setgid(kOther) != 0 || ::setuid(kOther) != 0) fail_errno("setuid");
              if (munge_verify(credential, "this")) fail("another user could verify it");
            }),
            0);
}

}  // namespace
}  // namespace lockstep::transfer
