// lockstep-report: shows where the time of a run went, from its records.

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "common/output.h"
#include "common/tool.h"
#include "exporters/report/find.h"
#include "exporters/report/page.h"
#include "exporters/report/run.h"
#include "exporters/report/text.h"

namespace {

lockstep::report::Run load(const std::vector<std::filesystem::path>& arguments) {
  std::vector<std::filesystem::path> paths;
  for (const std::filesystem::path& argument : arguments) {
    const auto found = lockstep::report::find_records(argument);
    paths.insert(paths.end(), found.begin(), found.end());
  }
  return lockstep::report::load(paths);
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::Tool tool(
      "lockstep-report",
      "Show where the time of a running or finished job went, rank by rank and phase by phase, from its records.");
  std::vector<std::filesystem::path> paths;
  std::filesystem::path page;
  tool.app()
      .add_option(
          "records", paths,
          "A job's number (JOB or JOB.STEP), or a folder of one job step's records ($LOCKSTEP_RECORD, $LOCKSTEP_REPORT_DIR), or files")
      ->required();
  std::filesystem::path baseline;
  tool.app()
      .add_option("--compare", baseline, "Compare with another run: its number or folder")
      ->check(lockstep::Tool::named());
  tool.app()
      .add_option("--out", page, "Also write one self-contained HTML page")
      ->check(lockstep::Tool::named());
  return tool.run(argc, argv, [&] {
    const lockstep::report::Run run = load(paths);
    if (!page.empty()) lockstep::write_output(page, lockstep::report::to_html(run));
    if (!baseline.empty()) {
      const lockstep::report::Run before = load({baseline});
      if (tool.json()) {
        lockstep::Tool::print(lockstep::report::comparison_json(run, before));
      } else {
        fmt::print("{}", lockstep::report::comparison_text(run, before));
      }
      return;
    }
    if (tool.json()) {
      nlohmann::json json = lockstep::report::to_json(run);
      if (!page.empty()) json["page"] = page.string();
      lockstep::Tool::print(json);
      return;
    }
    fmt::print("{}", lockstep::report::to_text(run));
    if (!page.empty()) fmt::print("report: {}\n", page.string());
  });
}
