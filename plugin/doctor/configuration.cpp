#include "plugin/doctor/configuration.h"

#include <glob.h>
#include <strings.h>

#include <array>
#include <fstream>
#include <sstream>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"

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

}  // namespace lockstep::doctor
