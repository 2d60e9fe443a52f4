#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "common/environment.h"
#include "common/error.h"
#include "common/leaf/subnet.h"
#include "common/leaf/text.h"
#include "common/process.h"
#include "common/sockets.h"
#include "common/thread.h"
#include "common/units.h"
#include "plugin/doctor/checks.h"
#include "staging/rendezvous/node_names.h"
#include "staging/rendezvous/rendezvous_messages.h"

namespace lockstep::doctor {
namespace {

using Clock = std::chrono::steady_clock;
using Versions = std::map<std::string, std::string>;

constexpr std::chrono::seconds kTimeout{15};
constexpr std::chrono::milliseconds kConnect{1000};
constexpr std::chrono::milliseconds kPause{50};
constexpr std::size_t kMaxLine = 4096;
constexpr int kPorts = 8;  // enough to find a free one

// A node tells this to another one.
struct Hello {
  unsigned long key = 0;
  std::string node;
  double seconds = 0;  ///< its clock
  Versions versions;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hello, key, node, seconds, versions)

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::chrono::milliseconds time_until(Clock::time_point end) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
}

// Reads one line; "" if none comes within two seconds, so a slow sender delays nobody for long.
std::string read_line(const UniqueFd& socket) {
  const auto end = Clock::now() + std::chrono::seconds(2);
  std::string line;
  std::array<char, kMaxLine> buffer{};
  while (line.size() < kMaxLine && !line.ends_with('\n')) {
    const auto left = time_until(end);
    pollfd wait{socket.get(), POLLIN, 0};
    if (left.count() <= 0 || ::poll(&wait, 1, static_cast<int>(left.count())) <= 0) return "";
    const ssize_t got = ::recv(socket.get(), buffer.data(), buffer.size() - line.size(), 0);
    if (got <= 0) return "";
    line.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return line;
}

std::optional<Hello> to_hello(const std::string& line, unsigned long key) {
  try {
    Hello hello = nlohmann::json::parse(line).get<Hello>();
    if (hello.key == key) return hello;
  } catch (const nlohmann::json::exception&) {  // another program at this port
  }
  return std::nullopt;
}

// The ports at which a node of this step listens: as staging's, those of lockstep.conf, or any.
std::vector<int> candidate_ports(const StepNodes& nodes, const spank::Config& config) {
  constexpr int kFirst = 32768;  // of the ports that Linux gives to processes
  constexpr int kLast = 60999;
  const int first = config.first_port > 0 ? config.first_port : kFirst;
  const int last = config.first_port > 0 ? config.last_port : kLast;
  const int count = std::min(kPorts, last - first + 1);
  const int begin = static_cast<int>(nodes.key % static_cast<unsigned long>(last - first + 2 - count));
  std::vector<int> ports;
  for (int i = 0; i < count; ++i) ports.push_back(first + begin + i);
  return ports;
}

// Answers the nodes that connect here, until all of them have or the time is over.
class Answers {
 public:
  Answers(const StepNodes& nodes, UniqueFd socket, Hello hello, Clock::time_point deadline)
      : socket_(std::move(socket)), hello_(std::move(hello)), deadline_(deadline) {
    const std::size_t count = nodes.names.size();
    waiting_.insert(nodes.names.at((nodes.self + count - 1) % count));
    if (nodes.self == 0) waiting_.insert(nodes.names.begin() + 1, nodes.names.end());
    thread_ = new_thread<std::jthread>([this] { serve(); });
  }

  /// The nodes that have not connected.
  const std::set<std::string>& wait() {
    thread_.join();
    return waiting_;
  }

 private:
  void serve() {
    while (!waiting_.empty()) {
      const auto left = time_until(deadline_);
      pollfd wait{socket_.get(), POLLIN, 0};
      if (left.count() <= 0 || ::poll(&wait, 1, static_cast<int>(left.count())) <= 0) return;
      const UniqueFd client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) continue;
      const auto request = to_hello(read_line(client), hello_.key);
      if (!request) continue;
      try {
        hello_.seconds = wall_seconds();
        send_all(client, nlohmann::json(hello_).dump() + "\n", "the other node");
        waiting_.erase(request->node);
      } catch (const Error&) {  // it asks again
      }
    }
  }

  UniqueFd socket_;
  Hello hello_;
  Clock::time_point deadline_;
  std::set<std::string> waiting_;
  std::jthread thread_;
};

struct Answer {
  Hello hello;
  double ahead = 0;   ///< seconds that the other clock is ahead of this one
  double unsure = 0;  ///< at most this much more or less
};

// Asks a node at each port, again until the deadline: it may begin later. Throws Error with the last reason.
Answer ask(const std::string& node, const std::vector<int>& ports, const Hello& own,
           Clock::time_point deadline) {
  std::string reason =
      fmt::format("{} has no lockstep-doctor at ports {}-{}", node, ports.front(), ports.back());
  do {
    for (const int port : ports) {
      try {
        const UniqueFd socket = connect_to({node}, port, kConnect, node.c_str());
        const double before = wall_seconds();
        send_all(socket, nlohmann::json(own).dump() + "\n", node.c_str());
        const auto hello = to_hello(read_line(socket), own.key);
        const double after = wall_seconds();
        if (!hello || hello->node != node) continue;
        return {*hello, hello->seconds - (before + after) / 2, (after - before) / 2};
      } catch (const Error& error) {
        reason = error.what();
      }
    }
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < deadline);
  throw Error(reason);
}

void check_clock(const Answer& answer, Report& report) {
  constexpr double kWarn = 1;
  constexpr double kFail = 60;
  const double apart = std::abs(answer.ahead) - answer.unsure;
  if (apart < kWarn) {
    return report.ok("clocks", fmt::format("the clock agrees with {}'s", answer.hello.node));
  }
  const std::string what = fmt::format("the clock is {} {} {}'s", format_seconds(std::abs(answer.ahead)),
                                       answer.ahead > 0 ? "behind" : "ahead of", answer.hello.node);
  const std::string why = "Times in logs and metrics disagree, and munge refuses credentials 5 minutes off.";
  const std::string remedy =
      "timedatectl shows whether a service sets the clock; restart it: systemctl restart chrony, or systemd-timesyncd";
  if (apart < kFail) {
    report.warning("clocks", what, why, remedy);
  } else {
    report.error("clocks", what, why, remedy);
  }
}

void check_versions(const Hello& first, const Versions& own, Report& report) {
  bool same = true;
  const auto named = [](const Versions& versions, const std::string& name) {
    const auto found = versions.find(name);
    return found == versions.end() ? std::string("missing") : printable(found->second, 40);
  };
  Versions names = own;
  names.insert(first.versions.begin(), first.versions.end());
  for (const auto& [name, ignored] : names) {
    const std::string own_version = named(own, name);
    const std::string their_version = named(first.versions, name);
    if (own_version == their_version) continue;
    same = false;
    report.error("versions",
                 fmt::format("{} is {} here and {} on {}", printable(name, 40), own_version, their_version,
                             first.node),
                 "Ranks with different versions fail, hang or compute different results.",
                 "install the same version on all nodes");
  }
  if (same) report.ok("versions", fmt::format("the versions agree with {}'s", first.node));
}

std::string join(const std::set<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::optional<StepNodes> nodes_of_step() {
  const auto list = environment::get("SLURM_STEP_NODELIST");
  const auto job = environment::get_integer("SLURM_JOB_ID");
  const auto step = environment::get_integer("SLURM_STEP_ID");
  // A rank that mpirun's daemons start has the daemons' variables, because mpirun starts the daemons with srun.
  if (!list || !job || !step || environment::get("OMPI_COMM_WORLD_RANK")) return std::nullopt;
  StepNodes nodes{.names = transfer::expand_node_list(*list)};
  const auto self = std::find(nodes.names.begin(), nodes.names.end(), node_name());
  if (nodes.names.size() < 2 || self == nodes.names.end()) return std::nullopt;
  nodes.self = static_cast<std::size_t>(self - nodes.names.begin());
  constexpr unsigned long kStepsOfJob = 1009;  // a prime: neighbouring jobs and steps use different ports
  nodes.key = static_cast<unsigned long>(*job) * kStepsOfJob + static_cast<unsigned long>(*step);
  return nodes;
}

void check_peer_network(const spank::Config& config, Report& report) {
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

void check_neighbours(const StepNodes& nodes, const spank::Config& config, Report& report) {
  const auto deadline = Clock::now() + kTimeout;
  const std::vector<int> ports = candidate_ports(nodes, config);
  const std::string range = fmt::format("{}-{}", ports.front(), ports.back());
  const std::string why = "Nodes that stage data together, and the nodes and srun, connect at such ports.";
  const std::string remedy =
      fmt::format("open the ports {} between the nodes, or set 'ports' in lockstep.conf to open ones",
                  config.first_port > 0 ? range : "32768-60999");
  UniqueFd socket;
  int port = 0;
  try {
    socket = listen_on(ports.front(), ports.back(), port);
  } catch (const Error& error) {
    report.error("ports", error.what(), why,
                 "set 'ports' in lockstep.conf to more ports; ss -ltnp shows which programs use them");
    return;
  }
  const Hello own{nodes.key, nodes.names.at(nodes.self), 0, report.versions};
  Answers answers(nodes, std::move(socket), own, deadline);

  std::set<std::string> peers{nodes.names.at((nodes.self + 1) % nodes.names.size())};
  if (nodes.self != 0) peers.insert(nodes.names.front());
  bool reached = true;
  for (const std::string& peer : peers) {
    try {
      const Answer answer = ask(peer, ports, own, deadline);
      if (peer != nodes.names.front()) continue;
      check_clock(answer, report);
      check_versions(answer.hello, report.versions, report);
    } catch (const Error& error) {
      reached = false;
      report.error("ports", error.what(), why, remedy);
    }
  }
  const std::set<std::string>& silent = answers.wait();
  if (!silent.empty()) {
    report.error("ports", fmt::format("{} did not connect to this node at port {}", join(silent), port), why,
                 remedy);
  } else if (reached) {
    report.ok("ports", fmt::format("the nodes reach each other at ports {}", range));
  }
}

}  // namespace lockstep::doctor
