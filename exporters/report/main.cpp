// lockstep-report: shows where the time of a run went, from its records.

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "common/output.h"
#include "common/tool.h"
#include "exporters/report/page.h"
#include "exporters/report/run.h"
#include "exporters/report/text.h"

int main(int argc, char** argv) {
  lockstep::Tool tool(
      "lockstep-report",
      "Show where the time of a running or finished job went, rank by rank and phase by phase, from its "
      "records.");
  std::vector<std::filesystem::path> paths;
  std::filesystem::path page;
  tool.app()
      .add_option("records", paths,
                  "Folder of one job step's records ($LOCKSTEP_RECORD, $LOCKSTEP_REPORT_DIR), or files")
      ->required();
  tool.app().add_option("--out", page, "Also write one self-contained HTML page");
  return tool.run(argc, argv, [&] {
    const lockstep::report::Run run = lockstep::report::load(paths);
    if (!page.empty()) lockstep::write_output(page, lockstep::report::to_html(run));
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
