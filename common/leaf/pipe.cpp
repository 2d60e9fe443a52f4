#include "common/leaf/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "common/leaf/error.h"

namespace lockstep {

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

}  // namespace lockstep
