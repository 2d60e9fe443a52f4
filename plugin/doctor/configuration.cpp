#include <fmt/format.h>
#include <glob.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "plugin/doctor/checks.h"

namespace lockstep::doctor {
namespace {

constexpr const char* kDefaultConfig = "/etc/lockstep/lockstep.conf";
constexpr int kMaxIncludes = 8;

bool equal_ignoring_case(const std::string& a, const char* b) {
  return ::strcasecmp(a.c_str(), b) == 0;
}

std::filesystem::path slurm_conf() {
  if (const auto named = environment::get("SLURM_CONF")) return *named;
  // The second one is where slurmd keeps the file on nodes that get it from slurmctld.
  for (const char* const path : {"/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"}) {
    if (std::filesystem::exists(path)) return path;
  }
  return "/etc/slurm/slurm.conf";
}

std::vector<std::filesystem::path> expand(const std::string& pattern, const std::filesystem::path& folder) {
  const std::string whole = pattern.starts_with('/') ? pattern : (folder / pattern).string();
  glob_t found{};
  std::vector<std::filesystem::path> paths;
  if (::glob(whole.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return paths;
}

std::optional<PluginLine> find_line(const std::filesystem::path& file, int depth) {
  std::ifstream lines(file);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string kind;
    std::string path;
    words >> kind >> path;
    if (equal_ignoring_case(kind, "include") && depth < kMaxIncludes) {
      for (const auto& included : expand(path, parent_of(file))) {
        if (auto found = find_line(included, depth + 1)) return found;
      }
    }
    if (std::filesystem::path(path).filename() != "lockstep.so") continue;
    PluginLine found{file, path, kDefaultConfig, number};
    for (std::string argument; words >> argument;) {
      if (argument.starts_with("conf=")) found.config = argument.substr(5);
    }
    return found;
  }
  return std::nullopt;
}

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

std::filesystem::path plugstack_file() {
  const std::filesystem::path conf = slurm_conf();
  std::ifstream lines(conf);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (equals == std::string::npos || !equal_ignoring_case(line.substr(0, equals), "PlugStackConfig"))
      continue;
    std::istringstream value(line.substr(equals + 1));
    std::string path;
    value >> path;
    return path;
  }
  return parent_of(conf) / "plugstack.conf";
}

std::optional<PluginLine> find_plugin_line(const std::filesystem::path& plugstack) {
  return find_line(plugstack, 0);
}

std::optional<PluginLine> find_line_not_included(const std::filesystem::path& plugstack) {
  for (const auto& file : expand("plugstack.conf.d/*.conf", parent_of(plugstack))) {
    if (auto found = find_line(file, kMaxIncludes)) return found;
  }
  return std::nullopt;
}

std::optional<Config> read_configuration(const std::string& path, const std::optional<PluginLine>& line,
                                         Report& report) {
  const std::string file = !path.empty() ? path : line ? line->config : kDefaultConfig;
  const bool required = !path.empty() || line;
  if (!required && !std::filesystem::exists(file)) return std::nullopt;
  try {
    auto config = read_config(file, environment::get_or("SLURM_JOB_PARTITION", ""));
    report.ok("configuration", fmt::format("{} is valid", file));
    return config;
  } catch (const Error& error) {
    const std::string sample = installed_file("share/lockstep/lockstep.conf");
    const std::string remedy =
        fmt::format("correct {}{}", file, sample.empty() ? "" : fmt::format("; {} is a sample", sample));
    const bool named = path.empty() && line && !std::filesystem::exists(file);
    report.error(
        "configuration",
        named ? fmt::format("{}, which {} names: {}", file, line->place(), error.what()) : error.what(),
        "Jobs with --stage, --pin or --metrics are refused until the file can be used.",
        named ? fmt::format("correct conf= in {}, or make that file{}", line->place(),
                            sample.empty() ? "" : ": cp " + sample + " " + file)
              : remedy);
    return std::nullopt;
  }
}

std::string installed_file(const std::string& name) {
  std::error_code missing;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", missing);
  const auto file = parent_of(parent_of(self)) / name;
  return std::filesystem::exists(file, missing) ? file.string() : "";
}

ProcessResult run_quickly(std::vector<std::string> command) {
  static constexpr std::array kLimit{"timeout", "--kill-after=1", "5"};
  command.insert(command.begin(), kLimit.begin(), kLimit.end());
  return run_process(command);
}

std::string text_in(const std::filesystem::path& file, const std::string& expression) {
  // grep does not read a huge CUDA library into memory.
  const std::string found = run_quickly({"grep", "-aoEm1", "-e", expression, file}).output;
  return found.substr(0, found.find('\n'));
}

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
