#include "staging/rendezvous/rendezvous_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <vector>

#include "common/error.h"
#include "staging/rendezvous/rendezvous_socket.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;

constexpr int kBacklog = 1024;
constexpr std::size_t kMaxStrangers = 256;  // connections that have not proved themselves yet
constexpr milliseconds kStranger{10'000};   // how long one may stay that

}  // namespace

struct RendezvousServer::Peer {
  UniqueFd socket;
  Session session;
  Clock::time_point since;  // it came
  Clock::time_point heard;
  std::string received, unsent;
  std::optional<Hello> hello;
  Group* group = nullptr;
  bool closed = false;
};

struct RendezvousServer::Group {
  std::uint32_t nodes = 0;
  std::string node_list;
  Clock::time_point first;                   // when its first node came
  std::optional<Clock::time_point> until;    // once a node has told a failure: when the others are told
  std::set<std::uint32_t> here, done, gone;  // gone: says nothing more
  std::set<std::uint32_t> broke_off;         // may come back
  std::map<std::uint32_t, Clock::time_point> awaited;  // broke off: how long its own outcome is waited for

  // When the others are told of a failure; nullopt while there is none.
  std::optional<Clock::time_point> decision_time() const {
    if (why_by_node.empty()) return {};
    Clock::time_point at = until.value_or(Clock::time_point::min());
    for (const auto& [id, patience] : awaited) at = std::max(at, patience);
    return at;
  }
  std::map<std::string, std::map<std::uint32_t, nlohmann::json>> rounds;
  std::map<std::string, std::string> why_by_node;
  std::optional<Verdict> verdict;
};

RendezvousServer::RendezvousServer(UniqueFd socket, Options options)
    : socket_(std::move(socket)), options_(std::move(options)) {
  if (::listen(socket_.get(), kBacklog) != 0) fail_errno("cannot listen for the step's nodes");
  set_nonblocking(socket_);
}

RendezvousServer::~RendezvousServer() = default;

void RendezvousServer::run(const UniqueFd& alive) {
  std::optional<Clock::time_point> until;  // once told to return
  for (;;) {
    const auto strangers =
        std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.hello; });
    const bool room = static_cast<std::size_t>(strangers) < kMaxStrangers;  // others wait in the backlog
    std::vector<pollfd> wait{{until ? -1 : alive.get(), POLLIN, 0}, {room ? socket_.get() : -1, POLLIN, 0}};
    for (const Peer& peer : peers_) {
      const int events = POLLIN | (peer.unsent.empty() ? 0 : POLLOUT);
      wait.push_back({peer.socket.get(), static_cast<short>(events), 0});
    }
    constexpr int kDraining = 10;
    if (::poll(wait.data(), wait.size(), until ? kDraining : milliseconds_to_next(Clock::now())) < 0 &&
        errno != EINTR) {
      fail_errno("cannot wait for the step's nodes");
    }
    if (wait[0].revents != 0 && !until) until = Clock::now() + options_.drain;
    if (until && (peers_.empty() || Clock::now() >= *until)) return;
    std::size_t at = 2;
    for (Peer& peer : peers_) {
      const short events = wait[at++].revents;
      if ((events & POLLOUT) != 0) flush(peer);
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(peer);
    }
    const Clock::time_point now = Clock::now();
    for (Peer& peer : peers_) {
      if (!peer.hello && now - peer.since > kStranger) peer.closed = true;
      if (peer.closed) lost(peer);
    }
    if (wait[1].revents != 0) accept_one();
    for (auto& [name, group] : groups_) settle(group, now);
    peers_.remove_if([](const Peer& peer) { return peer.closed; });
  }
}

void RendezvousServer::accept_one() {
  UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  notice_dead_peer(socket);
  Peer& peer = peers_.emplace_back(Peer{std::move(socket),
                                        Session(Session::Role::server, options_.key),
                                        Clock::now(),
                                        Clock::now(),
                                        {},
                                        {},
                                        {}});
  send(peer, peer.session.greeting());
}

void RendezvousServer::read_from(Peer& peer) {
  std::array<char, 4096> buffer{};
  const ssize_t got = ::recv(peer.socket.get(), buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    peer.closed = true;
    return;
  }
  peer.received.append(buffer.data(), static_cast<std::size_t>(got));
  try {
    for (std::size_t end = 0; (end = peer.received.find('\n')) != std::string::npos;) {
      const std::string line = peer.received.substr(0, end);
      peer.received.erase(0, end + 1);
      take_line(peer, line);
    }
    if (peer.received.size() > kLongestLine) peer.closed = true;
  } catch (const Error&) {  // a stranger, or one that has gone mad: as if it had broken off
    peer.closed = true;
  }
}

void RendezvousServer::take_line(Peer& peer, const std::string& line) {
  if (!peer.session.greeted()) return peer.session.take_greeting(line);
  const std::string payload = peer.session.open(line);
  if (!peer.hello) return take_hello(peer, payload);
  peer.heard = Clock::now();
  if (peer.group == nullptr) return;
  const Message kind = kind_of(payload);
  if (kind == Message::alive) return;
  if (kind == Message::word) return take_word(peer, payload);
  const Verdict outcome = Verdict::from_text(payload);
  peer.group->done.insert(peer.hello->node_id);
  peer.group->awaited.erase(peer.hello->node_id);
  if (!outcome.more) peer.group->gone.insert(peer.hello->node_id);
  if (!outcome.good) failed(*peer.group, peer.hello->node, outcome.why);
}

void RendezvousServer::take_word(Peer& peer, const std::string& payload) {
  Word word = Word::from_text(payload);
  peer.group->rounds[word.round].insert_or_assign(peer.hello->node_id, std::move(word.data));
}

// Who has told its outcome, or is gone, says nothing more and is not waited for.
void RendezvousServer::tell_complete_rounds(Group& group) {
  for (auto round = group.rounds.begin(); round != group.rounds.end();) {
    nlohmann::json all = nlohmann::json::object();
    bool complete = group.here.size() == group.nodes;
    for (const std::uint32_t id : group.here) {
      const auto said = round->second.find(id);
      complete = complete && (said != round->second.end() || group.gone.contains(id));
      all[std::to_string(id)] = said == round->second.end() ? nlohmann::json() : said->second;
    }
    if (!complete) {
      ++round;
      continue;
    }
    const std::string text = Word{round->first, std::move(all)}.to_text();
    for (Peer& peer : peers_) {
      if (peer.group == &group && !peer.closed) send(peer, peer.session.seal(text));
    }
    round = group.rounds.erase(round);
  }
}

// A helper that was stopped, or a machine that hangs: the connection stands, and nothing comes. Where nobody
// of the group says anything, the whole step is suspended and goes on some day.
void RendezvousServer::find_silent(Group& group, Clock::time_point now) {
  bool anybody = false;
  for (const Peer& peer : peers_)
    anybody = anybody || (peer.group == &group && now - peer.heard < options_.silent / 3);
  for (Peer& peer : peers_) {
    if (!anybody || peer.group != &group || now - peer.heard < options_.silent) continue;
    if (group.verdict) peer.closed = true;  // in the background the others go on without it
    if (group.verdict || group.done.contains(peer.hello->node_id)) continue;
    failed(group, peer.hello->node, "has stopped: its staging has said nothing for a while");
  }
}

void RendezvousServer::take_hello(Peer& peer, const std::string& text) {
  Hello hello = Hello::from_text(text);
  // Components of a heterogeneous job, or of one step of an ordinary job, come to the same srun; each is a
  // group of its own. The latter have one number, and differ in their nodes unless they say which they are.
  Group& group = groups_[fmt::format("{}.{}.{}.{}", hello.job, hello.step, hello.component, hello.node_list)];
  if (group.nodes == 0) {
    group.nodes = hello.nodes;
    group.node_list = hello.node_list;
    group.first = Clock::now();
  }
  peer.heard = Clock::now();
  const bool back = group.broke_off.erase(hello.node_id) > 0;
  // Once the outcome is known it changes no more, and is told to a helper that takes the place of a killed
  // one.
  const bool known = !group.here.insert(hello.node_id).second;
  if (group.nodes != hello.nodes || (known && !back && !group.verdict)) {
    fail("node {} of {} came twice, or to another step", hello.node_id, hello.nodes);
  }
  // It says why its helper had to be replaced, or that it goes on without.
  if (back) group.why_by_node.erase(hello.node);
  peer.hello = std::move(hello);
  peer.group = &group;
  if (group.verdict) send(peer, peer.session.seal(group.verdict->to_text()));
}

void RendezvousServer::lost(Peer& peer) {
  if (peer.group == nullptr) return;
  peer.group->gone.insert(peer.hello->node_id);
  if (peer.group->verdict) {
    peer.group = nullptr;
    return;
  }
  // A failure that it has told stays the reason, and its last word; otherwise that it broke off is. It is not
  // done, see Options::silence: that it had its data says nothing of how it comes back.
  if (!peer.group->why_by_node.contains(peer.hello->node)) {
    peer.group->broke_off.insert(peer.hello->node_id);
    peer.group->awaited[peer.hello->node_id] = Clock::now() + options_.silence;
    peer.group->done.erase(peer.hello->node_id);
    peer.group->why_by_node[peer.hello->node] = "broke off while it was staging";
  }
  peer.group = nullptr;
}

void RendezvousServer::failed(Group& group, const std::string& node, const std::string& why) const {
  group.why_by_node.try_emplace(node, why);
  const Clock::time_point until = Clock::now() + options_.collect;
  group.until = group.until ? std::min(*group.until, until) : until;
}

void RendezvousServer::settle(Group& group, Clock::time_point now) {
  tell_complete_rounds(group);
  find_silent(group, now);
  if (group.verdict) return;
  if (group.here.size() < group.nodes && now - group.first >= options_.wait) {
    const std::vector<std::string> names = expand_node_list(group.node_list);
    for (std::uint32_t id = 0; id < group.nodes; ++id) {
      if (group.here.contains(id)) continue;
      group.why_by_node[id < names.size() ? names[id] : fmt::format("node {} of the step", id)] = fmt::format(
          "did not reach srun within {} s; if it printed no line of its own, is a port of srun's machine "
          "closed to it ('ports' in lockstep.conf)?",
          std::chrono::duration_cast<std::chrono::seconds>(options_.wait).count());
    }
    return decide(group);
  }
  if (group.done.size() == group.nodes) return decide(group);
  const auto decision_time = group.decision_time();
  if (decision_time && now >= *decision_time) decide(group);
}

void RendezvousServer::decide(Group& group) {
  group.verdict = Verdict{group.why_by_node.empty(), describe(group.why_by_node)};
  if (!group.verdict->good && options_.report) options_.report(group.verdict->why);
  for (Peer& peer : peers_) {
    if (peer.group == &group) send(peer, peer.session.seal(group.verdict->to_text()));
  }
}

void RendezvousServer::send(Peer& peer, const std::string& bytes) {
  peer.unsent += bytes;
  flush(peer);
}

void RendezvousServer::flush(Peer& peer) {
  const ssize_t put = ::send(peer.socket.get(), peer.unsent.data(), peer.unsent.size(), MSG_NOSIGNAL);
  if (put > 0) peer.unsent.erase(0, static_cast<std::size_t>(put));
  if (put < 0 && errno != EAGAIN && errno != EINTR) peer.closed = true;
}

int RendezvousServer::milliseconds_to_next(Clock::time_point now) const {
  std::optional<Clock::time_point> next;
  const auto consider = [&](Clock::time_point at) { next = next ? std::min(*next, at) : at; };
  for (const Peer& peer : peers_) {
    if (!peer.hello) consider(peer.since + kStranger);
  }
  for (const auto& [name, group] : groups_) {
    consider(now + options_.silent / 4);
    if (group.verdict) continue;
    if (group.here.size() < group.nodes) consider(group.first + options_.wait);
    if (const auto decision_time = group.decision_time()) consider(*decision_time);
  }
  if (!next) return -1;
  // One more, since what is left of a millisecond would otherwise be spent spinning.
  return static_cast<int>(
      std::max<std::int64_t>(0, std::chrono::duration_cast<milliseconds>(*next - now).count()) + 1);
}

}  // namespace lockstep::transfer
