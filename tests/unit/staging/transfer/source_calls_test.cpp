// Makes every single call of a put at the source hang once, alone and with another node. The supervisor must
// notice it. This program replaces functions of the C library by wrappers that call the library's.

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstring>
#include <optional>

#include "common/leaf/network.h"
#include "staging/transfer/put.h"
#include "staging/transfer/put_nodes.h"
#include "staging/transfer/supervisor.h"
#include "tests/unit/staging/pack/formats/format_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace {

std::array<char, 512> watched;      // the source; nothing is counted while it is empty
std::atomic<int>* calls = nullptr;  // shared by the processes of one run
int hangs_at = 0;
int log_fd = -1;

void at_source(const char* what, const char* path) {
  const std::size_t length = std::strlen(watched.data());
  if (length == 0 || std::strncmp(path, watched.data(), length) != 0) return;
  if (++*calls != hangs_at) return;
  const std::string line = std::string(what) + " " + path;
  [[maybe_unused]] const ssize_t put = ::write(log_fd, line.data(), line.size());
  for (;;) ::pause();
}

void at_source(const char* what, int fd) {
  if (watched[0] == '\0') return;
  std::array<char, 512> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  if (::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), path.data(), path.size() - 1) > 0)
    at_source(what, path.data());
}

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, va_list more) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming,cert-dcl50-cpp): the C library's names
extern "C" {
int stat(const char* path, struct stat* into) noexcept {
  at_source("stat", path);
  return real<int(const char*, struct stat*)>("stat")(path, into);
}
int lstat(const char* path, struct stat* into) noexcept {
  at_source("lstat", path);
  return real<int(const char*, struct stat*)>("lstat")(path, into);
}
int access(const char* path, int how) noexcept {
  at_source("access", path);
  return real<int(const char*, int)>("access")(path, how);
}
int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  at_source("open", path);
  return real<int(const char*, int, ...)>("open")(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_of(flags, more);
  va_end(more);
  path[0] == '/' ? at_source("openat", path) : at_source("openat", folder);
  return real<int(int, const char*, int, ...)>("openat")(folder, path, flags, mode);
}
DIR* opendir(const char* path) {
  at_source("opendir", path);
  return real<DIR*(const char*)>("opendir")(path);
}
dirent* readdir(DIR* folder) {
  at_source("readdir", ::dirfd(folder));
  return real<dirent*(DIR*)>("readdir")(folder);
}
ssize_t pread(int fd, void* into, std::size_t size, off_t offset) {
  at_source("pread", fd);
  return real<ssize_t(int, void*, std::size_t, off_t)>("pread")(fd, into, size, offset);
}
ssize_t read(int fd, void* into, std::size_t size) {
  at_source("read", fd);
  return real<ssize_t(int, void*, std::size_t)>("read")(fd, into, size);
}
int fstat(int fd, struct stat* into) noexcept {
  at_source("fstat", fd);
  return real<int(int, struct stat*)>("fstat")(fd, into);
}
}
// NOLINTEND(readability-identifier-naming,cert-dcl50-cpp)

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using std::chrono::milliseconds;

constexpr int kNoticed = 42;
constexpr milliseconds kPatience{200};

class SourceCalls : public staging_test::StagingTest {
 protected:
  struct Run {
    pid_t pid = 0;
    int said = -1;
  };

  /// Starts a put whose n-th call at the source hangs, alone or as this node of two. Its process ends with
  /// kNoticed if the hang is noticed.
  Run start(const std::string& source, int n, std::optional<std::uint32_t> node) const {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe");
    const pid_t pid = ::fork();
    if (pid > 0) {
      ::close(ends[1]);
      return {pid, ends[0]};
    }
    ::alarm(10);
    NodesOptions nodes;
    if (node) {
      nodes = two_nodes();
      const std::uint32_t other = 1 - *node;
      if (::fork() == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::close(ends[1]);
        put_in_this_process(source, n, other, nodes);
      }
    }
    log_fd = ends[1];
    hangs_at = n;
    void* const memory =
        ::mmap(nullptr, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) ::_exit(1);
    calls = new (memory) std::atomic<int>(0);
    const std::string top = (folder_ / "source").string();
    std::memcpy(watched.data(), top.c_str(), top.size() + 1);
    put_in_this_process(source, n, node, nodes);
  }

  static NodesOptions two_nodes() {
    NodesOptions nodes;
    int port = 0;
    // Other runs must not get the port before the first node listens, so this process holds it until it ends.
    (void)bind_port(0, 0, true, port).release();
    nodes.nodes = {fmt::format("127.0.0.1:{}", port), "127.0.0.1:0"};
    nodes.key = "secret";
    return nodes;
  }

  /// Returns in a child process; this one ends with its code, or with kNoticed if it is stuck.
  static void supervise() {
    const std::optional<ChildEnd> end = run_supervised({.call_timeout = kPatience});
    if (end) ::_exit(end->stuck.empty() ? end->code : kNoticed);
  }

  [[noreturn]] void put_in_this_process(const std::string& source, int n, std::optional<std::uint32_t> node,
                                        NodesOptions nodes) const {
    const auto noticed = [](const std::string& why) {
      if (calls != nullptr && *calls >= hangs_at) ::_exit(kNoticed);
      fmt::print(stderr, "{}\n", why);
      ::_exit(2);
    };
    PutOptions options;
    options.cache_dir = folder_ / fmt::format("cache{}.{}", n, node.value_or(0));
    options.shared = (folder_ / "shared").string();
    options.on.file = [](const std::string&, const std::string&, const fs::path&) {};
    try {
      if (node) {
        nodes.node_id = *node;
        nodes.call_timeout = kPatience;
        nodes.stop = noticed;
        put_on_nodes({source}, options, nodes);
      } else {
        supervise();
        put({source}, options);
      }
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }

  /// The same for the n-th call that changes or opens a file on this node's disk.
  Run start_disk(const std::string& source, int n) const {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe");
    const pid_t pid = ::fork();
    if (pid > 0) {
      ::close(ends[1]);
      return {pid, ends[0]};
    }
    ::alarm(10);
    staging_test::WatchedFileSystem disk([&](int made, const FileCall& call) {
      if (made != n) return 0;
      [[maybe_unused]] const ssize_t put = ::write(ends[1], call.path, std::strlen(call.path));
      if (call.kind == FileCall::Kind::flock) ::_exit(kNoticed);  // waiting for a lock is not a hang
      for (;;) ::pause();
    });
    supervise();
    PutOptions options;
    options.cache_dir = folder_ / fmt::format("cache{}", n);
    options.file_system = &disk;
    options.sizes.mark_bytes = 1;
    try {
      put({source}, options);
    } catch (const std::exception& error) {
      ::_exit(1);
    }
    ::_exit(0);
  }

  /// The call that hung; empty if the put had fewer calls.
  static std::string end_of(const Run& run, int& code) {
    std::array<char, 600> text{};
    const ssize_t got = ::read(run.said, text.data(), text.size());
    ::close(run.said);
    int status = 0;
    ::waitpid(run.pid, &status, 0);
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }

  void expect_all_noticed(const std::string& name, std::optional<std::uint32_t> node = {},
                          bool disk = false) const {
    constexpr int kAtOnce = 16;
    const std::string source = (folder_ / "source" / name).string();
    SCOPED_TRACE(source);
    int hung = 0;
    for (int first = 1; first < 1000; first += kAtOnce) {
      std::vector<Run> runs;
      for (int n = first; n < first + kAtOnce; ++n)
        runs.push_back(disk ? start_disk(source, n) : start(source, n, node));
      bool end = false;
      for (const Run& run : runs) {
        int code = 0;
        const std::string what = end_of(run, code);
        if (what.empty()) {
          EXPECT_EQ(code, 0);
          end = true;
          continue;
        }
        ++hung;
        EXPECT_EQ(code, kNoticed) << what;
      }
      if (end) break;
    }
    EXPECT_GT(hung, 5);
    for (const fs::path& left : fs::directory_iterator(folder_)) {
      if (left.filename().string().starts_with("cache")) FileSystem::real().remove_all(left);
    }
  }
};

TEST_F(SourceCalls, OfAPackAreNoticedWhenTheyHang) {
  make_large_pack("source/p", 40);
  for (const char* name : {"p", "p/shard-000000.tar", "p/*.tar"}) expect_all_noticed(name);
}

TEST_F(SourceCalls, OfFilesAreNoticedWhenTheyHang) {
  write("source/files/a", "one");
  write("source/files/sub/b", "two");
  write("source/m/x.bin", std::string(40, '\0'));
  write("source/m/x.idx", staging_test::megatron_index(4, {10}));
  for (const char* name : {"files", "files/a", "m", "m/x", "m/x.bin"}) expect_all_noticed(name);
}

TEST_F(SourceCalls, OfFilesWithIndexesBesideThemAreNoticedWhenTheyHang) {
  write("source/t/a.tfrecord", staging_test::tfrecord({"one", "two"}));
  write("source/t/sub/b.tfrecord", staging_test::tfrecord({"three"}));
  (void)pack::open(folder_ / "source/t");
  ASSERT_TRUE(fs::exists(folder_ / "source/t/.a.tfrecord.lockstep"));
  for (const char* name : {"t", "t/a.tfrecord", "t/*.tfrecord"}) expect_all_noticed(name);
}

// The first node looks at the source for both.
TEST_F(SourceCalls, OfNodesThatPutTogetherAreNoticedWhenTheyHang) {
  make_large_pack("source/p", 40);
  write("source/m/x.bin", std::string(40, '\0'));
  write("source/m/x.idx", staging_test::megatron_index(4, {10}));
  for (const char* name : {"p", "p/shard-000000.tar", "m/x"}) expect_all_noticed(name, 1);
  expect_all_noticed("p", 0);
}

TEST_F(SourceCalls, AtTheDiskAreNoticedWhenTheyHangToo) {
  make_large_pack("source/p", 40);
  write("source/t/a.tfrecord", staging_test::tfrecord({"one", "two"}));
  (void)pack::open(folder_ / "source/t");
  for (const char* name : {"p", "t"}) expect_all_noticed(name, {}, true);
}

}  // namespace
}  // namespace lockstep::transfer
