// lockstep-report: shows where the time of a run went, from its records.

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "common/files.h"
#include "common/tool.h"
#include "exporters/report/report.h"
#include "exporters/report/run.h"

namespace {

std::vector<std::filesystem::path> find(const std::vector<std::filesystem::path>& arguments) {
  std::vector<std::filesystem::path> paths;
  for (const std::filesystem::path& argument : arguments) {
    const auto found = lockstep::report::find_records(argument);
    paths.insert(paths.end(), found.begin(), found.end());
  }
  return paths;
}

void join(const std::vector<std::filesystem::path>& paths, const std::filesystem::path& out, bool json) {
  const auto joined = lockstep::report::join_traces(paths, out);
  if (json) {
    lockstep::Tool::print({{"trace", out.string()},
                           {"run", joined.run},
                           {"ranks", joined.ranks},
                           {"ranks_of_run", joined.ranks_of_run}});
    return;
  }
  fmt::print("{}: {} of {} ranks of {}; https://ui.perfetto.dev opens it\n", out.string(), joined.ranks,
             joined.ranks_of_run, joined.run);
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
  std::filesystem::path trace;
  tool.app()
      .add_option("--trace", trace,
                  "Instead of a report, join the traces that the ranks left (LOCKSTEP_PROFILE) to this file")
      ->check(lockstep::Tool::named())
      ->excludes("--compare")
      ->excludes("--out");
  return tool.run(argc, argv, [&] {
    if (!trace.empty()) return join(find(paths), trace, tool.json());
    const lockstep::report::Run run = lockstep::report::load(find(paths));
    if (!page.empty()) lockstep::write_output(page, lockstep::report::to_html(run));
    if (!baseline.empty()) {
      const lockstep::report::Run before = lockstep::report::load(find({baseline}));
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
