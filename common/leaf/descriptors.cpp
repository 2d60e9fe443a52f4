#include "common/leaf/descriptors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "common/leaf/error.h"

namespace lockstep {
namespace {

constexpr unsigned kNoExecSeal = 0x8;  // MFD_NOEXEC_SEAL, which older headers lack

}  // namespace

Pipe::Pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw Error("cannot make a pipe: " + errno_text(errno));
  read_end.reset(ends[0]);
  write_end.reset(ends[1]);
}

void drain(UniqueFd& end, std::string& into, std::size_t max_bytes) {
  std::array<char, 16384> buffer{};
  const ssize_t got = ::read(end.get(), buffer.data(), buffer.size());
  if (got > 0) {
    if (into.size() < max_bytes) into.append(buffer.data(), static_cast<std::size_t>(got));
  } else if (got == 0 || errno != EINTR) {
    end.reset();
  }
}

UniqueFd make_memory_file(const char* name) {
  UniqueFd file(::memfd_create(name, MFD_CLOEXEC | kNoExecSeal));
  if (!file && errno == EINVAL) file.reset(::memfd_create(name, MFD_CLOEXEC));  // Linux before 6.3
  return file;
}

void raise_open_files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if the kernel refuses it, the old limit stays
}

bool no_descriptor_left(int error) {
  return error == EMFILE || error == ENFILE;
}

}  // namespace lockstep
