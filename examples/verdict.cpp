#include "examples/verdict.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "common/environment.h"
#include "common/error.h"
#ifdef LOCKSTEP_WITH_REPORT
#include "exporters/report/advice.h"
#include "exporters/report/run.h"
#endif

namespace lockstep {

void print_verdict(World& world) {
  const std::filesystem::path records = world.timer().file().parent_path();
  if (world.rank() != 0 || records.empty()) return;
#ifdef LOCKSTEP_WITH_REPORT
  try {
    const report::Run run = report::load({records});
    for (const std::string& line : report::verdict_lines(run, report::find_all(run)))
      fmt::print("{}\n", line);
  } catch (const Error& error) {  // a trained model counts more than its report
    fmt::print("no verdict: {}\n", error.what());
  }
#endif
  fmt::print("where each rank's time went: lockstep-report {}\n",
             environment::get_or("LOCKSTEP_REPORT_DIR", records.string()));
}

}  // namespace lockstep
