// A library for LD_PRELOAD that makes a process's disk slow: each fsync and syncfs takes SLOW_SYNC_MS longer, and files
// under the folder SLOW_READ_UNDER are read at SLOW_READ_RATE bytes per second.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

namespace {

double number_of(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::atof(text);
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

bool is_slow(int fd) {
  static const char* const under = std::getenv("SLOW_READ_UNDER");
  if (under == nullptr) return false;
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error)
      .native()
      .starts_with(under);
}

int slow_sync(int fd, const char* name) {
  static const double milliseconds = number_of("SLOW_SYNC_MS");
  sleep_for(milliseconds * 1e-3);
  return reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, name))(fd);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int fsync(int fd) {
  return slow_sync(fd, "fsync");
}

int syncfs(int fd) noexcept {
  return slow_sync(fd, "syncfs");
}

ssize_t pread(int fd, void* into, size_t size, off_t offset) {
  static const auto real =
      reinterpret_cast<ssize_t (*)(int, void*, size_t, off_t)>(::dlsym(RTLD_NEXT, "pread"));
  static const double rate = number_of("SLOW_READ_RATE");
  const ssize_t got = real(fd, into, size, offset);
  static std::mutex disk;  // the rate is that of all threads together
  if (got > 0 && rate > 0 && is_slow(fd)) {
    const std::lock_guard lock(disk);
    sleep_for(static_cast<double>(got) / rate);
  }
  return got;
}

}  // extern "C"
#pragma GCC visibility pop
