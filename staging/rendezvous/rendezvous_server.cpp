#include "staging/rendezvous/rendezvous_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "common/error.h"
#include "common/leaf/open_files.h"
#include "common/sockets.h"
#include "staging/rendezvous/chain_directory.h"
#include "staging/rendezvous/node_names.h"
#include "staging/rendezvous/secure_connection.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;

constexpr int kBacklog = 1024;
// Connections from one address that have not introduced themselves, if the step has fewer nodes: otherwise one user could
// take all descriptors.
constexpr std::size_t kMinFromOneAddress = 1024;
constexpr std::size_t kMaxFirstLineBytes = 65536;  // of a peer that has not authenticated
constexpr int kAcceptedAtOnce = 64;
constexpr milliseconds kFirstBytesTimeout{2000};
constexpr milliseconds kAuthenticationTimeout{10'000};
constexpr milliseconds kAcceptPause{200};  // after accept() failed

}  // namespace

struct RendezvousServer::Peer {
  Peer(UniqueFd socket, const std::string& key, std::string from)
      : connection(std::move(socket), kRendezvousService, key), address(std::move(from)) {}

  // When the connection is dropped if the peer has not introduced itself.
  Clock::time_point hello_deadline() const {
    return connected + (sent_something ? kAuthenticationTimeout : kFirstBytesTimeout);
  }

  SecureConnection connection;
  std::string address;
  Clock::time_point connected = Clock::now();
  bool sent_something = false;
  bool authenticated = false;
  std::string unsent;
  std::optional<Hello> hello;
  Group* group = nullptr;
  bool closed = false;
};

struct RendezvousServer::Group {
  std::uint32_t nodes = 0;
  std::string node_list;
  Clock::time_point first_joined;
  std::optional<Clock::time_point> failure_deadline;  // of the failure window, once a node has failed
  std::set<std::uint32_t> joined, finished;
  std::set<std::uint32_t> left;          // sends nothing more
  std::set<std::uint32_t> passed_over;   // its successor takes the data from elsewhere
  std::set<std::uint32_t> disconnected;  // may come back
  std::map<std::uint32_t, Clock::time_point> reconnect_deadlines;

  // Runs only while nodes of the group are heard, so that none looks silent after a suspended step goes on.
  milliseconds running{0};
  Clock::time_point last_message;
  std::map<std::uint32_t, milliseconds> heard;  // when, in `running`, each node was heard last
  Clock::time_point look_for_silent;            // not at every message: there may be many nodes
  void hear(std::uint32_t node) {
    constexpr milliseconds kMaxGap{2000};
    const Clock::time_point now = Clock::now();
    running += std::min(std::chrono::ceil<milliseconds>(now - last_message), kMaxGap);
    last_message = now;
    heard[node] = running;
  }
  milliseconds silence(std::uint32_t node) const {
    const auto at = heard.find(node);
    return at == heard.end() ? milliseconds(0) : running - at->second;
  }

  // When the verdict is due because of a failure; nullopt while there is no failure.
  std::optional<Clock::time_point> decision_time() const {
    if (why_by_node.empty()) return {};
    Clock::time_point at = failure_deadline.value_or(Clock::time_point::min());
    for (const auto& [id, deadline] : reconnect_deadlines) at = std::max(at, deadline);
    return at;
  }
  std::map<std::string, std::map<std::uint32_t, nlohmann::json>> rounds;
  std::map<std::uint32_t, nlohmann::json> addresses;  // where each node receives connections of others
  std::map<std::string, ChainDirectory> directories;  // by the round that made them
  std::map<std::string, std::string> why_by_node;
  std::vector<std::pair<double, std::string>> seconds;  // of the nodes that have staged something
  std::map<std::uint32_t, std::pair<std::string, NodeProgress>> progress;  // with the node's name
  std::optional<Clock::time_point> progress_due;
  Clock::time_point progress_said{};
  std::optional<Verdict> verdict;
};

RendezvousServer::RendezvousServer(UniqueFd socket, Options options)
    : socket_(std::move(socket)), options_(std::move(options)) {
  if (::listen(socket_.get(), kBacklog) != 0) fail_errno("cannot listen for the nodes of the step");
  set_nonblocking(socket_);
}

RendezvousServer::~RendezvousServer() = default;

void RendezvousServer::run(const UniqueFd& alive) {
  std::optional<Clock::time_point> deadline;  // once `alive` has ended
  for (;;) {
    // Before that time new connections wait in the backlog.
    const bool accepting = Clock::now() >= next_accept_;
    std::vector<pollfd> wait{{deadline ? -1 : alive.get(), POLLIN, 0},
                             {accepting ? socket_.get() : -1, POLLIN, 0}};
    for (const Peer& peer : peers_) {
      const int events = POLLIN | (peer.unsent.empty() ? 0 : POLLOUT);
      wait.push_back({peer.connection.socket().get(), static_cast<short>(events), 0});
    }
    constexpr int kDraining = 10;
    if (::poll(wait.data(), wait.size(), deadline ? kDraining : milliseconds_to_next(Clock::now())) < 0 &&
        errno != EINTR) {
      fail_errno("cannot wait for the nodes of the step");
    }
    if (wait[0].revents != 0 && !deadline) deadline = Clock::now() + options_.drain_timeout;
    if (deadline && (peers_.empty() || Clock::now() >= *deadline)) return;
    std::size_t at = 2;
    for (Peer& peer : peers_) {
      const short events = wait[at++].revents;
      if ((events & POLLOUT) != 0) flush(peer);
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(peer);
    }
    const Clock::time_point now = Clock::now();
    for (Peer& peer : peers_) {
      if (!peer.hello && now > peer.hello_deadline()) peer.closed = true;
      if (peer.closed) disconnected(peer);
    }
    if (wait[1].revents != 0) accept_some();
    for (auto& [name, group] : groups_) settle(group, now);
    // settle() closes peers too. The others must not wait for them.
    for (Peer& peer : peers_) {
      if (peer.closed) disconnected(peer);
    }
    peers_.remove_if([](const Peer& peer) { return peer.closed; });
  }
}

void RendezvousServer::accept_some() {
  std::map<std::string, std::size_t> unknown;  // peers, by address
  for (const Peer& peer : peers_) {
    if (!peer.hello) ++unknown[peer.address];
  }
  std::size_t most = kMinFromOneAddress;
  for (const auto& [name, group] : groups_) most = std::max<std::size_t>(most, group.nodes);
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return accept_failed(errno);
    std::string address = peer_address(socket);
    // Every user of this machine can connect from any of these.
    if (address.starts_with("127.")) address = "::1";
    if (unknown[address]++ >= most) continue;  // is closed; a node connects again
    notice_dead_peer(socket);
    peers_.emplace_back(std::move(socket), options_.key, std::move(address));
  }
}

// The connection stays in the backlog, so that poll() would return at once again.
void RendezvousServer::accept_failed(int error) {
  if (error == EAGAIN || error == ECONNABORTED || error == EINTR) return;
  next_accept_ = Clock::now() + kAcceptPause;
  if (!no_descriptor_left(error) || std::exchange(ran_out_of_descriptors_, true)) return;
  if (options_.report)
    options_.report(fmt::format("srun cannot accept further nodes of the step: {}", kNoDescriptorLeft));
}

void RendezvousServer::read_from(Peer& peer) {
  peer.sent_something = true;
  try {
    if (!peer.authenticated && !(peer.authenticated = peer.connection.try_accept())) return;
    while (const std::optional<std::string> line =
               peer.connection.receive_line(peer.hello ? kMaxLineBytes : kMaxFirstLineBytes))
      receive_line(peer, *line);
  } catch (const Error&) {  // not a node of the step, or a faulty one: treated as disconnected
    peer.closed = true;
  }
}

void RendezvousServer::receive_line(Peer& peer, const std::string& line) {
  if (!peer.hello) return receive_hello(peer, line);
  if (peer.group == nullptr) return;
  peer.group->hear(peer.hello->node_id);
  const Message kind = kind_of(line);
  if (kind == Message::alive) return;
  if (kind == Message::round) return receive_round(peer, line);
  const Verdict outcome = Verdict::from_text(line);
  peer.group->finished.insert(peer.hello->node_id);
  peer.group->reconnect_deadlines.erase(peer.hello->node_id);
  if (outcome.seconds > 0) peer.group->seconds.emplace_back(outcome.seconds, peer.hello->node);
  if (!outcome.continues_in_background) peer.group->left.insert(peer.hello->node_id);
  if (!outcome.good) add_failure(*peer.group, peer.hello->node, outcome.why);
}

void RendezvousServer::receive_round(Peer& peer, const std::string& payload) {
  RoundMessage message = RoundMessage::from_text(payload);
  if (message.round.starts_with(kQuestion)) return answer_question(peer, message);
  peer.group->rounds[message.round].insert_or_assign(peer.hello->node_id, std::move(message.data));
}

// A round does not wait for nodes that have left.
void RendezvousServer::answer_complete_rounds(Group& group) {
  for (auto round = group.rounds.begin(); round != group.rounds.end();) {
    const bool complete = group.joined.size() == group.nodes &&
                          std::all_of(group.joined.begin(), group.joined.end(), [&](std::uint32_t id) {
                            return round->second.contains(id) || group.left.contains(id);
                          });
    if (!complete) {
      ++round;
      continue;
    }
    if (round->first.starts_with(kStatesRound)) {
      answer_states(group, round->first, round->second);
      round = group.rounds.erase(round);
      continue;
    }
    for (const std::uint32_t id : group.joined) round->second.try_emplace(id);
    nlohmann::json all = group_nodes(round->second);
    const std::string text = RoundMessage{round->first, std::move(all)}.to_text();
    for (Peer& peer : peers_) {
      if (peer.group == &group && !peer.closed) send(peer, text);
    }
    round = group.rounds.erase(round);
  }
}

// Each node learns its own neighbours only.
void RendezvousServer::answer_states(Group& group, const std::string& round,
                                     const std::map<std::uint32_t, nlohmann::json>& data) {
  std::map<std::uint32_t, std::string> states;
  for (const auto& [node, text] : data) {
    if (text.is_string() && !group.left.contains(node)) states.emplace(node, text.get<std::string>());
  }
  std::string problem;
  try {
    group.directories.insert_or_assign(round, ChainDirectory(states));
  } catch (const Error& error) {
    problem = error.what();
  }
  for (Peer& peer : peers_) {
    if (peer.group != &group || peer.closed) continue;
    nlohmann::json answer{{"problem", problem}};
    if (problem.empty()) {
      const std::vector<ChainPart> parts = group.directories.at(round).parts_of(peer.hello->node_id);
      answer = {{"chains", to_json(parts)}, {"addresses", nlohmann::json::object()}};
      for (const ChainPart& part : parts) {
        if (!part.predecessor) continue;
        const auto address = group.addresses.find(part.predecessor->node);
        if (address != group.addresses.end())
          answer["addresses"][std::to_string(address->first)] = address->second;
      }
    }
    send(peer, RoundMessage{round, std::move(answer)}.to_text());
  }
}

bool RendezvousServer::is_lost(const Group& group, std::uint32_t node, milliseconds silence) {
  return group.left.contains(node) || group.passed_over.contains(node) || group.silence(node) > silence;
}

void RendezvousServer::answer_question(Peer& peer, const RoundMessage& question) {
  Group& group = *peer.group;
  try {
    if (question.data.contains("passed_over"))
      group.passed_over.insert(question.data.at("passed_over").get<std::uint32_t>());
    nlohmann::json answer = nlohmann::json::object();
    if (question.data.contains("progress")) {
      group.progress[peer.hello->node_id] = {peer.hello->node,
                                             node_progress_from(question.data.at("progress"))};
      // The nodes tell it at about the same time.
      if (!group.progress_due)
        group.progress_due = std::max(Clock::now() + options_.progress_interval / 10,
                                      group.progress_said + options_.progress_interval);
    }
    if (question.data.contains("address")) group.addresses[peer.hello->node_id] = question.data.at("address");
    if (question.data.contains("address_of")) {
      const auto found = group.addresses.find(question.data.at("address_of").get<std::uint32_t>());
      if (found != group.addresses.end()) answer["address"] = found->second;
    }
    if (question.data.contains("chain")) {
      const auto found = group.directories.find(question.data.at("round").get<std::string>());
      if (found == group.directories.end()) fail("a node asked for a chain that does not exist");
      answer["next"] =
          to_json(found->second.next(question.data.at("chain"), peer.hello->node_id, [&](std::uint32_t node) {
            return node != peer.hello->node_id && is_lost(group, node, options_.neighbour_timeout);
          }));
    }
    nlohmann::json lost = nlohmann::json::array();
    for (const std::uint32_t node : question.data.value("asked", std::vector<std::uint32_t>())) {
      if (is_lost(group, node, options_.neighbour_timeout)) lost.push_back(node);
    }
    answer["lost"] = std::move(lost);
    send(peer, RoundMessage{question.round, std::move(answer)}.to_text());
  } catch (const nlohmann::json::exception& error) {
    fail("a question has a wrong field: {}", error.what());
  }
}

// Finds nodes whose process is stopped or whose machine hangs: they are connected but send nothing, although others do.
void RendezvousServer::find_silent(Group& group) {
  for (Peer& peer : peers_) {
    if (peer.group != &group || group.silence(peer.hello->node_id) < options_.silence_timeout) continue;
    if (group.verdict) peer.closed = true;  // in the background the other nodes go on without it
    if (group.verdict || group.finished.contains(peer.hello->node_id)) continue;
    add_failure(group, peer.hello->node, "its staging process stopped responding");
  }
}

void RendezvousServer::receive_hello(Peer& peer, const std::string& text) {
  Hello hello = Hello::from_text(text);
  if (hello.client_name() != peer.connection.client()) fail("it is not the node that it says");
  // Components of a heterogeneous job, or of one step of an ordinary job, use the same srun; each is a separate group.
  // Components of one step share its number and differ in `component` or, without it, in their node lists.
  Group& group = groups_[fmt::format("{}.{}.{}.{}", hello.job, hello.step, hello.component, hello.node_list)];
  if (group.nodes == 0) {
    group.nodes = hello.nodes;
    group.node_list = hello.node_list;
    group.first_joined = group.last_message = Clock::now();
  }
  for (Peer& other : peers_) {
    if (hello.replaces_process && other.group == &group && other.hello->node_id == hello.node_id)
      disconnected(other);
  }
  const bool reconnected = group.disconnected.erase(hello.node_id) > 0;
  // A verdict is final. A process that replaces a killed one gets it too.
  const bool known = !group.joined.insert(hello.node_id).second;
  if (group.nodes != hello.nodes || (known && !reconnected && !group.verdict)) {
    fail("node {} of {} has joined already, or belongs to another step", hello.node_id, hello.nodes);
  }
  // It will report why its process was replaced, or that it reads from the source.
  if (reconnected) group.why_by_node.erase(hello.node);
  peer.hello = std::move(hello);
  peer.group = &group;
  group.hear(peer.hello->node_id);
  if (group.verdict) send(peer, group.verdict->to_text());
}

void RendezvousServer::disconnected(Peer& peer) {
  if (peer.group == nullptr) return;
  peer.group->left.insert(peer.hello->node_id);
  if (peer.group->verdict) {
    peer.group = nullptr;
    return;
  }
  // A failure that it has reported stays the reason; otherwise the reason is that it disconnected. It no longer counts
  // as finished, even if it had its data: it may come back and report something else (reconnect_timeout).
  if (!peer.group->why_by_node.contains(peer.hello->node)) {
    peer.group->disconnected.insert(peer.hello->node_id);
    peer.group->reconnect_deadlines[peer.hello->node_id] = Clock::now() + options_.reconnect_timeout;
    peer.group->finished.erase(peer.hello->node_id);
    peer.group->why_by_node[peer.hello->node] = "disconnected while it was staging";
  }
  peer.group = nullptr;
}

void RendezvousServer::add_failure(Group& group, const std::string& node, const std::string& why) const {
  group.why_by_node.try_emplace(node, why);
  const Clock::time_point deadline = Clock::now() + options_.failure_window;
  group.failure_deadline = std::min(group.failure_deadline.value_or(deadline), deadline);
}

void RendezvousServer::settle(Group& group, Clock::time_point now) {
  answer_complete_rounds(group);
  if (now >= group.look_for_silent) {
    group.look_for_silent = now + options_.silence_timeout / 8;
    find_silent(group);
  }
  if (group.progress_due && now >= *group.progress_due) say_progress(group);
  if (group.verdict) return;
  if (group.joined.size() < group.nodes && now - group.first_joined >= options_.join_timeout) {
    const std::vector<std::string> names = expand_node_list(group.node_list);
    for (std::uint32_t id = 0; id < group.nodes; ++id) {
      if (group.joined.contains(id)) continue;
      group.why_by_node[id < names.size() ? names[id] : fmt::format("node {} of the step", id)] = fmt::format(
          "did not reach srun within {} s; {}",
          std::chrono::duration_cast<std::chrono::seconds>(options_.join_timeout).count(),
          ran_out_of_descriptors_
              ? fmt::format("on srun's machine {}", kNoDescriptorLeft)
              : "if it printed no error itself, check that it can reach the ports of srun's machine ('ports' in lockstep.conf)");
    }
    return decide(group);
  }
  if (group.finished.size() == group.nodes) return decide(group);
  const auto decision_time = group.decision_time();
  if (decision_time && now >= *decision_time) decide(group);
}

void RendezvousServer::say_progress(Group& group) {
  group.progress_due.reset();
  group.progress_said = Clock::now();
  std::map<std::string, NodeProgress> nodes;
  bool all_done = true;
  for (auto& [node, of_node] : group.progress) {
    auto& [name, progress] = of_node;
    if (group.left.contains(node)) progress.done = progress.total;
    all_done = all_done && group.left.contains(node);
    nodes.emplace(name, progress);
  }
  if (!all_done && options_.progress) options_.progress(describe_progress(nodes));
}

void RendezvousServer::decide(Group& group) {
  group.verdict = Verdict{group.why_by_node.empty(), describe(group.why_by_node)};
  if (!group.verdict->good && options_.report) options_.report(group.verdict->why);
  // Node 0 comes last: its process may run this server, and ends it when it receives the verdict.
  for (const bool first_node : {false, true}) {
    for (Peer& peer : peers_) {
      if (peer.group != &group || (peer.hello->node_id == 0) != first_node) continue;
      if (first_node && group.verdict->good) group.verdict->times = describe_times(group.seconds);
      send(peer, group.verdict->to_text());
    }
  }
}

void RendezvousServer::send(Peer& peer, const std::string& line) {
  peer.unsent += line + "\n";
  flush(peer);
}

void RendezvousServer::flush(Peer& peer) {
  try {
    peer.unsent.erase(0, peer.connection.send(std::as_bytes(std::span(peer.unsent))));
  } catch (const PeerError&) {
    peer.closed = true;
  }
}

int RendezvousServer::milliseconds_to_next(Clock::time_point now) const {
  std::optional<Clock::time_point> next;
  const auto consider = [&](Clock::time_point at) { next = next ? std::min(*next, at) : at; };
  for (const Peer& peer : peers_) {
    if (!peer.hello) consider(peer.hello_deadline());
  }
  if (next_accept_ > now) consider(next_accept_);
  for (const auto& [name, group] : groups_) {
    consider(now + options_.silence_timeout / 4);
    if (group.progress_due) consider(*group.progress_due);
    if (group.verdict) continue;
    if (group.joined.size() < group.nodes) consider(group.first_joined + options_.join_timeout);
    if (const auto decision_time = group.decision_time()) consider(*decision_time);
  }
  if (!next) return -1;
  // Round up: poll() would return early and spin.
  return static_cast<int>(
      std::max<std::int64_t>(0, std::chrono::duration_cast<milliseconds>(*next - now).count()) + 1);
}

}  // namespace lockstep::transfer
