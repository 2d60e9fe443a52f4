// Apart from report.cpp, so that code without Slurm's symbols can be tested outside a Slurm process.
#include <slurm/spank.h>

#include "common/leaf/text.h"
#include "plugin/spank/process/report.h"

namespace lockstep::spank {

void log(const std::string& text) noexcept {
  try {
    slurm_error("lockstep: %s", printable(text).c_str());
  } catch (...) {  // out of memory: nothing can be printed
  }
}

}  // namespace lockstep::spank
