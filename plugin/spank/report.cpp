#include "plugin/spank/report.h"

#include <unistd.h>

#include <cstring>

namespace lockstep::spank {

namespace {

std::string one_line(const std::string& text) {
  std::string line = "lockstep: " + text;
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return line;
}

}  // namespace

void say(const std::string& text) noexcept {
  try {
    const std::string line = one_line(text) + "\n";
    // A closed or full standard error is not worth failing a job for.
    [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {  // out of memory: nothing can be said
  }
}

std::string errno_text(int error) {
  return std::strerror(error);
}

}  // namespace lockstep::spank
