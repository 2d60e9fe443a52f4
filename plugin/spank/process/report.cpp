#include "plugin/spank/process/report.h"

#include <unistd.h>

#include "common/leaf/text.h"

namespace lockstep::spank {

void say(const std::string& text) noexcept {
  try {
    const std::string line = printable("lockstep: " + text) + "\n";
    // A closed or full standard error is not worth failing a job for.
    [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {  // out of memory: nothing can be printed
  }
}

}  // namespace lockstep::spank
