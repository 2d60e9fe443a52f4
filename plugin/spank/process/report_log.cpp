// Apart from report.cpp, so that code without Slurm's symbols can be tested outside a Slurm process.
#include <slurm/spank.h>

#include "plugin/spank/process/report.h"

namespace lockstep::spank {

void log(const std::string& text) noexcept {
  slurm_error("lockstep: %s", text.c_str());
}

}  // namespace lockstep::spank
