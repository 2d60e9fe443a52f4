// lockstep-top: shows the ranks of a job live in a terminal, from their records on this node.

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/tool.h"
#include "exporters/report/find.h"
#include "exporters/top/live.h"
#include "exporters/top/screen.h"
#include "exporters/top/table.h"

namespace lockstep::top {
namespace {

constexpr std::chrono::seconds kRefresh{1};

// Looks again each time: steps of the job begin and end.
Live look(const std::filesystem::path& records) {
  return measure(report::load(report::find_records(records, report::Prefer::live), kLastSteps),
                 monotonic_ns());
}

void print(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) fmt::print("{}\n", line);
}

// The plugin removes the records of a job that has ended. Then the last table stays on the user's screen.
void watch(const std::filesystem::path& records) {
  const bool colours = !environment::get("NO_COLOR");
  Live live = look(records);
  std::string ended;
  {
    Screen screen;
    do {
      const Screen::Size size = screen.size();
      screen.show(to_lines(live, {.columns = size.columns, .rows = size.rows, .colours = colours}));
      if (!screen.wait(kRefresh)) return;
      try {
        live = look(records);
      } catch (const Error& error) {
        ended = error.what();
      }
    } while (ended.empty());
  }
  print(to_lines(live, {}));
  fmt::print("the records are gone: {}\n", ended);
}

}  // namespace
}  // namespace lockstep::top

int main(int argc, char** argv) {
  lockstep::Tool tool(
      "lockstep-top",
      "Show the ranks of a job on this node live: step time, phases, tokens per second, waiting. Ends with q or Ctrl-C.");
  std::filesystem::path records;
  bool once = false;
  tool.app()
      .add_option(
          "records", records,
          "A job's number (JOB or JOB.STEP), or a folder of one job step's records ($LOCKSTEP_RECORD)")
      ->required();
  tool.app().add_flag("--once", once,
                      "Print one table and exit; also without it if the output is not a terminal");
  return tool.run(argc, argv, [&] {
    if (tool.json()) {
      lockstep::Tool::print(to_json(lockstep::top::look(records)));
    } else if (once || ::isatty(STDOUT_FILENO) == 0) {
      lockstep::top::print(to_lines(lockstep::top::look(records), {}));
    } else {
      lockstep::top::watch(records);
    }
  });
}
