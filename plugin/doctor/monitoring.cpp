#include "plugin/doctor/monitoring.h"

#include <fcntl.h>
#include <grp.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/file.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "common/error.h"
#include "common/sockets.h"
#include "common/units.h"
#include "plugin/doctor/configuration.h"

namespace lockstep::doctor {
namespace {

constexpr int kPort = 9753;

// The exporter holds a shared lock on the folder of the records (exporters/node/scanner.h). A user who may not open the
// folder sees the exporter only if it answers at its usual port; nullopt if it does not: it may use another address.
std::optional<bool> exporter_runs(const std::string& records) {
  const UniqueFd folder(::open(records.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const bool hidden = !folder && errno == EACCES;
  if (folder) return ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0;
  try {
    constexpr std::chrono::milliseconds kWait{500};
    connect_to({"127.0.0.1", host_name()}, kPort, kWait, "the exporter");
    return true;
  } catch (const Error&) {
    return hidden ? std::nullopt : std::optional(false);
  }
}

// The node's name and addresses, as a regular expression of Prometheus: its targets may be either.
std::string names_of(const std::string& node) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return node;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, ::freeifaddrs);
  std::set<std::string> names{node};
  for (const ifaddrs* each = found; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const bool v6 = each->ifa_addr->sa_family == AF_INET6;
    if (!v6 && each->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(each->ifa_addr, v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in), text.data(),
                      text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
      continue;
    }
    const std::string address = text.data();
    if (address == "::1" || address.starts_with("127.")) continue;  // each node's
    names.insert(v6 ? "[[]" + address + "[]]" : address);
  }
  return fmt::format("{}", fmt::join(names, "|"));
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
  const std::optional<bool> runs = exporter_runs(config.records);
  if (!runs) {
    return report.ok(
        "exporter",
        fmt::format("not known whether lockstep-exporter runs: only root and the group '{}' can tell",
                    config.group));
  }
  if (*runs) return report.ok("exporter", "lockstep-exporter runs");
  const std::string unit = installed_file("share/lockstep/lockstep-exporter.service");  // not in the packages
  report.warning("exporter", "no lockstep-exporter runs on this node",
                 "The step times of its jobs do not reach Prometheus.",
                 fmt::format("{}systemctl enable --now lockstep-exporter; journalctl -u lockstep-exporter",
                             unit.empty() ? "" : fmt::format("cp -n {} /etc/systemd/system/; ", unit)));
}

void check_prometheus(const std::string& url, const std::string& node, Report& report) {
  const std::string query =
      fmt::format("query=max(up{{job=\"lockstep\",instance=~\"({})([.:].*)?\"}})", names_of(node));
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
