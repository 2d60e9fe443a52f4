#include "plugin/doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/leaf/text.h"

namespace lockstep::doctor {
namespace {

const char* name_of(Level level) {
  switch (level) {
    case Level::ok:
      return "ok";
    case Level::warning:
      return "warning";
    default:
      return "error";
  }
}

std::string plural(std::ptrdiff_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

void Report::ok(std::string id, std::string what) {
  findings_.push_back({std::move(id), Level::ok, std::move(what), "", ""});
}

void Report::warning(std::string id, std::string what, std::string why, std::string remedy) {
  findings_.push_back({std::move(id), Level::warning, std::move(what), std::move(why), std::move(remedy)});
}

void Report::error(std::string id, std::string what, std::string why, std::string remedy) {
  findings_.push_back({std::move(id), Level::error, std::move(what), std::move(why), std::move(remedy)});
}

bool Report::failed() const {
  return std::any_of(findings_.begin(), findings_.end(),
                     [](const Finding& finding) { return finding.level == Level::error; });
}

nlohmann::json to_json(const std::string& node, const Report& report) {
  nlohmann::json findings = nlohmann::json::array();
  for (const Finding& finding : report.findings()) {
    findings.push_back({{"id", finding.id},
                        {"level", name_of(finding.level)},
                        {"what", finding.what},
                        {"why", finding.why},
                        {"do", finding.remedy}});
  }
  return {{"node", node}, {"findings", findings}};
}

std::string to_text(const std::string& node, const Report& report, bool verbose) {
  std::string text;
  const auto count = [&](Level level) {
    return std::count_if(report.findings().begin(), report.findings().end(),
                         [&](const Finding& finding) { return finding.level == level; });
  };
  for (const Level level : {Level::error, Level::warning, Level::ok}) {
    for (const Finding& finding : report.findings()) {
      if (finding.level != level || (level == Level::ok && !verbose)) continue;
      text += fmt::format("{}: {}: {}: {}\n", node, name_of(level), finding.id, printable(finding.what));
      if (level == Level::ok) continue;
      // srun may mix the lines of several nodes.
      text += fmt::format("{0}:   why: {1}\n{0}:   do:  {2}\n", node, printable(finding.why),
                          printable(finding.remedy));
    }
  }
  const auto errors = count(Level::error);
  const auto warnings = count(Level::warning);
  const std::string good = plural(count(Level::ok), "check");
  if (errors + warnings == 0) return text + fmt::format("{}: healthy, {}\n", node, good);
  return text +
         fmt::format("{}: {}, {}, {} ok\n", node, plural(errors, "error"), plural(warnings, "warning"), good);
}

}  // namespace lockstep::doctor
