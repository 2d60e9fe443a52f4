#include "plugin/spank/process/report.h"

#include <unistd.h>

namespace lockstep::spank {

std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

void say(const std::string& text) noexcept {
  try {
    const std::string line = printable("lockstep: " + text) + "\n";
    // A closed or full standard error is not worth failing a job for.
    [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {  // out of memory: nothing can be printed
  }
}

}  // namespace lockstep::spank
