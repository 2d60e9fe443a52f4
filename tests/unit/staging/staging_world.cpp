#include "tests/unit/staging/staging_world.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "common/file_system.h"
#include "common/files.h"
#include "staging/pack/write/create.h"
#include "staging/pack/write/file_list.h"

namespace lockstep::staging_test {

StagingTest::StagingTest() {
  std::string name = (fs::temp_directory_path() / "lockstep-staging-XXXXXX").string();
  folder_ = fs::canonical(::mkdtemp(name.data()));
}

StagingTest::~StagingTest() {
  do {
    std::ifstream children(fmt::format("/proc/self/task/{}/children", ::gettid()));
    for (pid_t child = 0; children >> child;) ::kill(child, SIGKILL);
  } while (::waitpid(-1, nullptr, 0) > 0 || errno == EINTR);
  try {
    FileSystem::real().remove_all(folder_);
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

void StagingTest::write(const fs::path& name, const std::string& content) const {
  fs::create_directories((folder_ / name).parent_path());
  std::ofstream(folder_ / name, std::ios::binary) << content;
}

fs::path StagingTest::make_pack(const std::string& name, const std::map<std::string, std::string>& files,
                                std::uint64_t shard_bytes, int token_bytes) const {
  for (const auto& [file, content] : files) write(fs::path(name + ".src") / file, content);
  pack::CreateOptions options;
  options.folder = folder_ / (name + ".src");
  options.files = pack::files_below(options.folder, {});
  options.out = folder_ / name;
  options.shard_bytes = shard_bytes;
  options.token_bytes = token_bytes;
  options.threads = 2;
  pack::create(options);
  return options.out;
}

fs::path StagingTest::make_large_pack(const std::string& name, int samples) const {
  std::map<std::string, std::string> files;
  for (int i = 0; i < samples; ++i) {
    std::string content;
    while (content.size() < 3000)
      content += std::to_string(i * 7919 + static_cast<int>(content.size())) + ' ';
    content.resize(3000);
    files[fmt::format("{:04}.bin", i)] = content;
  }
  return make_pack(name, files, std::uint64_t{64} << 10);
}

fs::path StagingTest::make_big_pack(const std::string& name) const {
  std::map<std::string, std::string> files;
  for (int i = 0; i < 15; ++i)
    files[fmt::format("{:02}", i)] = std::string(1'000'000, static_cast<char>('a' + i));
  return make_pack(name, files, 5'000'000);
}

std::vector<std::string> StagingTest::names(const fs::path& folder) {
  return FileSystem::real().list_if_there(folder).value_or(std::vector<std::string>());
}

std::string read_sample(const pack::Reader& reader, std::size_t i) {
  std::string payload(reader.bytes(i), '\0');
  reader.read(i, std::as_writable_bytes(std::span(payload)));
  return payload;
}

std::string read(const fs::path& file) {
  return read_text_file(file);
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777U;
}

void flip_byte(const fs::path& file, std::uint64_t offset) {
  struct stat status {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  {
    const UniqueFd fd = open_file(file, O_RDWR);
    char byte = 0;
    ASSERT_EQ(::pread(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte = static_cast<char>(byte ^ 0x20);
    ASSERT_EQ(::pwrite(fd.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  }
  const timespec times[] = {status.st_atim, status.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  ASSERT_EQ(::chmod(file.c_str(), status.st_mode & 07777), 0);
}

std::map<std::string, std::string> content_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().lexically_relative(folder).string()] = read(entry.path());
  }
  return files;
}

std::uint64_t size_of(const fs::path& folder) {
  std::uint64_t bytes = 0;
  for (const auto& [name, content] : content_of(folder)) bytes += content.size();
  return bytes;
}

bool own_mounts() {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(uid == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) return false;
  if (uid != 0) {
    write_all(open_file("/proc/self/setgroups", O_WRONLY).get(), "deny", "setgroups");
    write_all(open_file("/proc/self/uid_map", O_WRONLY).get(), fmt::format("{0} {0} 1\n", uid), "uid_map");
    write_all(open_file("/proc/self/gid_map", O_WRONLY).get(), fmt::format("{0} {0} 1\n", gid), "gid_map");
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

bool wait_for(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

pid_t start_child(const std::function<void()>& work) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail_errno("fork");
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  int code = 0;
  try {
    work();
  } catch (const std::exception& error) {
    fmt::print(stderr, "child: {}\n", error.what());
    code = 1;
  }
  ::_exit(code);
}

int end_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int in_child(const std::function<void()>& work) {
  return end_of(start_child(work));
}

pid_t child_of(pid_t process) {
  pid_t child = 0;
  const bool found = wait_for([&] {
    return static_cast<bool>(std::ifstream(fmt::format("/proc/{0}/task/{0}/children", process)) >> child);
  });
  if (!found) fail("process {} has no child", process);
  return child;
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
