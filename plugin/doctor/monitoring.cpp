#include "plugin/doctor/monitoring.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>

#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/sockets.h"
#include "common/units.h"
#include "plugin/doctor/configuration.h"

namespace lockstep::doctor {
namespace {

constexpr int kPort = 9753;

// The exporter holds a shared lock on the folder of the records (exporters/node/scanner.h). If this user may not
// open the folder, something must answer at the exporter's usual port.
bool exporter_runs(const std::string& records) {
  const UniqueFd folder(::open(records.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder) return ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0;
  try {
    constexpr std::chrono::milliseconds kWait{500};
    connect_to({"127.0.0.1", host_name()}, kPort, kWait, "the exporter");
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string result_of(const std::string& answer) {
  const auto value = nlohmann::json::parse(answer, nullptr, /*allow_exceptions=*/false);
  const auto where = nlohmann::json::json_pointer("/data/result/0/value/1");
  if (!value.is_object() || !value.contains(where) || !value.at(where).is_string()) return "";
  return value.at(where);
}

}  // namespace

void check_exporter(const spank::Config& config, Report& report) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread reads the groups
  if (::getgrnam(config.group.c_str()) == nullptr) return;  // "group" has said so
  if (exporter_runs(config.records)) return report.ok("exporter", "lockstep-exporter runs");
  report.warning("exporter", "no lockstep-exporter runs on this node",
                 "The step times of its jobs do not reach Prometheus.",
                 "systemctl enable --now lockstep-exporter; journalctl -u lockstep-exporter");
}

void check_prometheus(const std::string& url, const std::string& node, Report& report) {
  const std::string query = fmt::format("query=max(up{{job=\"lockstep\",instance=~\"{}([.:].*)?\"}})", node);
  const ProcessResult answer = run_quickly({"curl", "-sS", "--fail", "--get", "--max-time", "4",
                                            "--data-urlencode", query, url + "/api/v1/query"});
  const std::string why = "Without it there are no dashboards and no alerts for this node's jobs.";
  if (answer.exit_code == 127) {
    return report.warning("prometheus", "curl is not installed, so Prometheus is not checked", why,
                          "install curl");
  }
  if (answer.exit_code != 0) {
    return report.warning("prometheus",
                          fmt::format("no answer from {}: {}", url,
                                      printable(answer.error.substr(0, answer.error.find('\n')), 200)),
                          why, "check the address, and systemctl status prometheus on its machine");
  }
  const std::string up = result_of(answer.output);
  if (up == "1") return report.ok("prometheus", fmt::format("{} has this node as a healthy target", url));
  report.warning("prometheus",
                 up.empty() ? fmt::format("{} does not have this node as a target of the job 'lockstep'", url)
                            : fmt::format("{} gets no answer from this node's exporter", url),
                 why,
                 up.empty() ? "add this node to the targets, or use lockstep-exporter --print-targets"
                            : "check the exporter's --listen and the firewall at port 9753");
}

}  // namespace lockstep::doctor
