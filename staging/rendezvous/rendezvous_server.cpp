#include "staging/rendezvous/rendezvous_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <vector>

#include "common/error.h"
#include "common/leaf/descriptors.h"
#include "common/sockets.h"
#include "staging/rendezvous/node_names.h"
#include "staging/rendezvous/rendezvous_messages.h"
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
constexpr unsigned kReadable = EPOLLIN;
constexpr unsigned kWritable = EPOLLOUT;

}  // namespace

struct RendezvousServer::Peer {
  Peer(UniqueFd socket, const std::string& key, std::string from)
      : connection(std::move(socket), kRendezvousService, key), client(std::move(from)) {}

  // When the connection is dropped if the peer has not introduced itself.
  Clock::time_point hello_deadline() const {
    return connected + (sent_something ? kAuthenticationTimeout : kFirstBytesTimeout);
  }

  SecureConnection connection;
  std::string client;
  Clock::time_point connected = Clock::now();
  bool sent_something = false;
  bool authenticated = false;
  std::string unsent;
  bool waits_to_send = false;  // for room in the socket
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
  std::set<std::uint32_t> disconnected;  // may come back
  std::map<std::uint32_t, Clock::time_point> reconnect_deadlines;

  // Runs only while nodes of the group are heard, so that none looks silent after a suspended step goes on.
  milliseconds running{0};
  Clock::time_point last_message;
  std::map<std::uint32_t, milliseconds> heard;  // when, in `running`, each node was heard last
  Clock::time_point look_for_silent;            // not at every message: there may be many nodes
  void hear(std::uint32_t node) {
    constexpr milliseconds kMaxGap{6000};
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
  struct Round {
    std::set<std::uint32_t> nodes;                 // that have contributed
    std::map<std::uint32_t, nlohmann::json> data;  // if all nodes receive the data of all
    RingStates states;
    std::string digest;  // the first one that is not empty
    Contents contents;
    std::string problem;
  };
  std::map<std::string, Round> rounds;
  std::map<std::uint32_t, RingPart::Peer> addresses;  // where each node receives connections of others
  std::vector<std::uint32_t> ring;                    // its nodes, in order
  std::map<std::string, std::string> why_by_node;
  std::vector<std::pair<double, std::string>> seconds;  // of the nodes that have staged something
  std::map<std::uint32_t, std::pair<std::string, NodeProgress>> progress;  // with the node's name
  std::optional<Clock::time_point> progress_due;
  Clock::time_point progress_said{};
  std::optional<Verdict> verdict;
};

RendezvousServer::RendezvousServer(UniqueFd socket, Options options)
    : socket_(std::move(socket)), epoll_(::epoll_create1(EPOLL_CLOEXEC)), options_(std::move(options)) {
  if (!epoll_) fail_errno("cannot wait for the nodes of the step");
  if (::listen(socket_.get(), kBacklog) != 0) fail_errno("cannot listen for the nodes of the step");
  set_nonblocking(socket_);
}

RendezvousServer::~RendezvousServer() = default;

bool RendezvousServer::watch(const UniqueFd& fd, int operation, unsigned events, void* what) const {
  epoll_event event{};
  event.events = events;
  event.data.ptr = what;
  return ::epoll_ctl(epoll_.get(), operation, fd.get(), &event) == 0;
}

void RendezvousServer::run(const UniqueFd& alive) {
  void* const kAliveEnded = nullptr;
  std::optional<Clock::time_point> deadline;  // once `alive` has ended
  bool accepting = true;
  if (!watch(alive, EPOLL_CTL_ADD, kReadable, kAliveEnded) || !watch(socket_, EPOLL_CTL_ADD, kReadable, this))
    fail_errno("cannot wait for the nodes of the step");
  for (;;) {
    // Before that time new connections wait in the backlog.
    if (accepting != (Clock::now() >= next_accept_)) {
      accepting = !accepting;
      watch(socket_, EPOLL_CTL_MOD, accepting ? kReadable : 0, this);
    }
    constexpr int kDraining = 10;
    std::array<epoll_event, 256> events{};
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   deadline ? kDraining : milliseconds_to_next(Clock::now()));
    if (count < 0 && errno != EINTR) fail_errno("cannot wait for the nodes of the step");
    bool somebody_connects = false;
    for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(std::max(count, 0)))) {
      if (event.data.ptr == kAliveEnded) {
        deadline = Clock::now() + options_.drain_timeout;
        watch(alive, EPOLL_CTL_DEL, 0, nullptr);
      } else if (event.data.ptr == this) {
        somebody_connects = true;
      } else {
        Peer& peer = *static_cast<Peer*>(event.data.ptr);
        if ((event.events & kWritable) != 0) flush(peer);
        if ((event.events & ~kWritable) != 0) read_from(peer);
      }
    }
    if (deadline && (peers_.empty() || Clock::now() >= *deadline)) return;
    const Clock::time_point now = Clock::now();
    for (Peer& peer : peers_) {
      if (!peer.hello && now > peer.hello_deadline()) peer.closed = true;
      if (peer.closed) disconnected(peer);
    }
    if (somebody_connects) accept_some();
    for (auto& [name, group] : groups_) settle(group, now);
    // settle() closes peers too. The others must not wait for them.
    for (Peer& peer : peers_) {
      if (peer.closed) disconnected(peer);
    }
    // A child of this process may hold the socket too, so that closing it would not be enough.
    peers_.remove_if([this](const Peer& peer) {
      if (peer.closed) watch(peer.connection.socket(), EPOLL_CTL_DEL, 0, nullptr);
      return peer.closed;
    });
  }
}

void RendezvousServer::accept_some() {
  std::map<std::string, std::size_t> unknown;  // peers, by address
  for (const Peer& peer : peers_) {
    if (!peer.hello) ++unknown[peer.client];
  }
  std::size_t most = kMinFromOneAddress;
  for (const auto& [name, group] : groups_) most = std::max<std::size_t>(most, group.nodes);
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return accept_failed(errno);
    std::string client = client_of(socket);
    if (unknown[client]++ >= most) continue;  // is closed; a node connects again
    notice_dead_peer(socket);
    Peer& peer = peers_.emplace_back(std::move(socket), options_.key, std::move(client));
    peer.closed = !watch(peer.connection.socket(), EPOLL_CTL_ADD, kReadable, &peer);
  }
}

// The connection stays in the backlog, so that epoll_wait() would return at once again.
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
  if (!outcome.continues_in_background) leaves(*peer.group, peer.hello->node_id);
  if (!outcome.good) add_failure(*peer.group, peer.hello->node, outcome.why);
}

void RendezvousServer::receive_round(Peer& peer, const std::string& payload) {
  RoundMessage message = RoundMessage::from_text(payload);
  const std::uint32_t node = peer.hello->node_id;
  try {
    if (message.round == kAddress) {
      peer.group->addresses[node] = message.data.get<RingPart::Peer>();
      peer.group->addresses[node].node = node;
      return;
    }
    if (message.round == kProgress) return receive_progress(peer, message.data);
    Group::Round& round = peer.group->rounds[message.round];
    if (!round.nodes.insert(node).second) return;
    if (message.round.starts_with(kStatesRound)) {
      try {
        round.states.add(message.data.get<std::string>());
      } catch (const Error& error) {
        round.problem = error.what();
      }
    } else if (message.round.starts_with(kContentsRound)) {
      const std::string digest = message.data.at("digest");
      if (round.digest.empty()) round.digest = digest;
      round.contents.equal = round.contents.equal && (digest.empty() || digest == round.digest);
      round.contents.again = round.contents.again || message.data.at("lacks").get<bool>();
      const auto suspects = message.data.value("suspects", std::vector<Suspect>());
      round.contents.suspects.insert(round.contents.suspects.end(), suspects.begin(), suspects.end());
    } else {
      round.data.emplace(node, std::move(message.data));
    }
  } catch (const nlohmann::json::exception& error) {
    fail("a round has a wrong field: {}", error.what());
  }
}

void RendezvousServer::receive_progress(Peer& peer, const nlohmann::json& message) const {
  Group& group = *peer.group;
  group.progress[peer.hello->node_id] = {peer.hello->node, message.get<NodeProgress>()};
  // The nodes tell it at about the same time.
  if (!group.progress_due)
    group.progress_due = std::max(Clock::now() + options_.progress_interval / 10,
                                  group.progress_said + options_.progress_interval);
}

// A round does not wait for nodes that have left.
void RendezvousServer::answer_complete_rounds(Group& group) {
  if (group.joined.size() < group.nodes) return;
  for (auto at = group.rounds.begin(); at != group.rounds.end();) {
    const std::string name = at->first;
    Group::Round& round = at->second;
    const bool complete = round.nodes.size() + group.left.size() >= group.nodes &&
                          std::all_of(group.joined.begin(), group.joined.end(), [&](std::uint32_t id) {
                            return round.nodes.contains(id) || group.left.contains(id);
                          });
    if (!complete) {
      ++at;
      continue;
    }
    if (name.starts_with(kStatesRound)) {
      answer_states(group, name);
    } else if (name.starts_with(kContentsRound)) {
      for (const std::uint32_t node : group.ring) round.contents.lost |= group.left.contains(node);
      send_all(group, RoundMessage{name, round.contents}.to_text());
    } else {
      for (const std::uint32_t id : group.joined) round.data.try_emplace(id);
      send_all(group, RoundMessage{name, group_nodes(round.data)}.to_text());
    }
    at = group.rounds.erase(at);
  }
}

void RendezvousServer::send_all(const Group& group, const std::string& line) {
  for (Peer& peer : peers_) {
    if (peer.group == &group && !peer.closed) send(peer, line);
  }
}

// Each node learns its own predecessor only.
void RendezvousServer::answer_states(Group& group, const std::string& name) {
  const Group::Round& round = group.rounds.at(name);
  if (!round.problem.empty())
    return send_all(group, RoundMessage{name, {{"problem", round.problem}}}.to_text());
  group.ring.clear();
  for (const std::uint32_t node : round.nodes) {
    if (!group.left.contains(node) && group.addresses.contains(node)) group.ring.push_back(node);
  }
  RingPart part;
  part.nodes = static_cast<std::uint32_t>(group.ring.size());
  part.sources = round.states.parts(group.ring.size() < round.nodes.size());
  for (Peer& peer : peers_) {
    if (peer.group != &group || peer.closed) continue;
    const auto found = std::lower_bound(group.ring.begin(), group.ring.end(), peer.hello->node_id);
    if (found == group.ring.end() || *found != peer.hello->node_id) continue;
    part.place = static_cast<std::uint32_t>(found - group.ring.begin());
    part.predecessor =
        group.addresses.at(group.ring[(part.place + group.ring.size() - 1) % group.ring.size()]);
    send(peer, RoundMessage{name, ring_part_json(part)}.to_text());
  }
}

// Its successor reads from the source what it still lacks.
void RendezvousServer::leaves(Group& group, std::uint32_t node) {
  if (!group.left.insert(node).second) return;
  const auto found = std::lower_bound(group.ring.begin(), group.ring.end(), node);
  if (found == group.ring.end() || *found != node) return;
  const auto place = static_cast<std::size_t>(found - group.ring.begin());
  const std::uint32_t successor = group.ring[(place + 1) % group.ring.size()];
  for (Peer& peer : peers_) {
    if (peer.group == &group && !peer.closed && peer.hello->node_id == successor)
      send(peer, RoundMessage{kLeft, node}.to_text());
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
  leaves(*peer.group, peer.hello->node_id);
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

void RendezvousServer::send(Peer& peer, const std::string& line) const {
  peer.unsent += line + "\n";
  flush(peer);
}

void RendezvousServer::flush(Peer& peer) const {
  try {
    peer.unsent.erase(0, peer.connection.send(std::as_bytes(std::span(peer.unsent))));
    if (peer.waits_to_send == !peer.unsent.empty()) return;
    peer.waits_to_send = !peer.waits_to_send;
    watch(peer.connection.socket(), EPOLL_CTL_MOD, kReadable | (peer.waits_to_send ? kWritable : 0), &peer);
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
  // Round up: epoll_wait() would return early and spin.
  return static_cast<int>(
      std::max<std::int64_t>(0, std::chrono::duration_cast<milliseconds>(*next - now).count()) + 1);
}

}  // namespace lockstep::transfer
