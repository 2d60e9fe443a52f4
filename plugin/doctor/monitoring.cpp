#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <grp.h>
#include <ifaddrs.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/network.h"
#include "common/leaf/text.h"
#include "common/sockets.h"
#include "plugin/doctor/checks.h"

namespace lockstep::doctor {
namespace {

constexpr int kPort = 9753;

enum class ExporterState { missing, stopped, runs, unknown };

// Whether the process with this lock on the folder is stopped, as after SIGSTOP. It would keep its lock and its port.
bool holder_is_stopped(const UniqueFd& folder) {
  struct stat status = {};
  if (::fstat(folder.get(), &status) != 0) return false;
  const std::string file = fmt::format(":{}", status.st_ino);
  std::istringstream locks(read_text_file("/proc/locks"));
  // 1: FLOCK  ADVISORY  READ 1234 00:1a:5678 0 EOF
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, mode, access, process, place;
    words >> number >> kind >> mode >> access >> process >> place;
    if (kind != "FLOCK" || access != "READ" || !place.ends_with(file)) continue;
    std::ifstream stat("/proc/" + process + "/stat");
    std::string text;
    std::getline(stat, text);
    const std::size_t name_end = text.rfind(") ");  // the name may have any characters
    if (name_end != std::string::npos && text.size() > name_end + 2 && (text[name_end + 2] | 0x20) == 't')
      return true;
  }
  return false;
}

// A process that is stopped accepts connections too, but says nothing.
bool answers_at_its_port() {
  try {
    constexpr std::chrono::milliseconds kWait{500};
    const UniqueFd connection = connect_to({"127.0.0.1", host_name()}, kPort, kWait, "the exporter");
    send_all(connection, "GET / HTTP/1.0\r\n\r\n", "the exporter");
    pollfd ready{.fd = connection.get(), .events = POLLIN, .revents = 0};
    return ::poll(&ready, 1, kWait.count()) == 1;
  } catch (const Error&) {
    return false;
  }
}

// The exporter holds a shared lock on the folder of the records (exporters/node/collector.h). A user who may not open the
// folder sees the exporter only if it answers at its usual port: it may use another address.
ExporterState exporter_state(const std::string& records) {
  const UniqueFd folder(::open(records.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const bool hidden = !folder && errno == EACCES;
  if (folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0)
    return holder_is_stopped(folder) ? ExporterState::stopped : ExporterState::runs;
  if (!folder && answers_at_its_port()) return ExporterState::runs;
  return hidden ? ExporterState::unknown : ExporterState::missing;
}

// The node's name and addresses, as a regular expression of Prometheus: its targets may be either.
std::string names_of(const std::string& node) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return node;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, ::freeifaddrs);
  std::set<std::string> names{node};
  for (const ifaddrs* each = found; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const std::string address = address_text(*each->ifa_addr);
    const bool v6 = each->ifa_addr->sa_family == AF_INET6;
    if (address.empty() || address == "::1" || address.starts_with("127.")) continue;  // each node's
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

void check_exporter(const Config& config, Report& report) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread reads the groups
  if (::getgrnam(config.group.c_str()) == nullptr) return;  // "group" has said so
  constexpr const char* kWhy = "The step times of its jobs do not reach Prometheus.";
  switch (exporter_state(config.records)) {
    case ExporterState::runs:
      return report.ok("exporter", "lockstep-exporter runs");
    case ExporterState::unknown:
      return report.ok(
          "exporter",
          fmt::format("not known whether lockstep-exporter runs: only root and the group '{}' can tell",
                      config.group));
    case ExporterState::stopped:
      return report.warning("exporter", "lockstep-exporter is stopped on this node, so it does not answer",
                            kWhy, "systemctl restart lockstep-exporter");
    case ExporterState::missing:
      break;
  }
  if (!is_compute_node()) {
    return report.ok("exporter",
                     "slurm.conf knows no node of this name, so no lockstep-exporter is needed here");
  }
  const std::string unit = installed_file("share/lockstep/lockstep-exporter.service");  // not in the packages
  report.warning("exporter", "no lockstep-exporter runs on this node", kWhy,
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

void check_peer_network(const Config& config, Report& report) {
  if (config.peer_networks.empty()) return;
  std::vector<Subnet> networks;
  for (const std::string& text : config.peer_networks) networks.push_back(Subnet::parse(text).value());
  const std::string names = fmt::format("{}", fmt::join(config.peer_networks, ", "));
  if (const std::string address = address_in(networks); !address.empty()) {
    report.ok("peer_network", fmt::format("other nodes reach this one at {}, in {}", address, names));
  } else {
    report.error("peer_network", fmt::format("no running interface has an address in {}", names),
                 "Staged data passes this node over the network that leads to srun, which may be slower.",
                 "start the interface (ip -brief address), or correct peer_network in lockstep.conf");
  }
}

}  // namespace lockstep::doctor
