#include "staging/transfer/exchange/exchange.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/sockets.h"
#include "common/thread.h"
#include "common/tool.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kServedAtOnce = 8;  // chunks in memory for others
constexpr std::ptrdiff_t kMaxUnauthenticated = 16;
constexpr milliseconds kBusyLook{5};  // between two looks for a request, while chunks are sent
constexpr milliseconds kClosing{1};   // between two checks for the end of a dropped connection
constexpr milliseconds kIdle{100};

void check_releases(const std::map<std::uint32_t, nlohmann::json>& messages, PeerGroup& peers) {
  std::map<std::string, std::string> nodes;  // one of each release
  for (const auto& [node, message] : messages)
    nodes.try_emplace(message.value("release", "an unknown one"), message.value("name", peers.name(node)));
  if (nodes.size() < 2) return;
  std::string list;
  for (const auto& [release, node] : nodes) list += (list.empty() ? "" : ", ") + release + " on " + node;
  throw OtherRelease("the nodes run different releases of Lockstep (" + list +
                     "): each of them reads all data from the source");
}

}  // namespace

/// The request of one connection of the successor.
struct Exchange::Feed {
  std::size_t number = 0;
  std::uint64_t generation = 0;
  bool asked = false;
  std::vector<std::size_t> lists;                // asked for before the ring is served
  std::optional<std::vector<std::byte>> wanted;  // the same
  std::shared_ptr<Ring> ring;
};

struct Exchange::Client {
  UniqueFd socket;
  int fd = -1;  // while it is open; this and `authenticated` under the exchange's mutex
  bool authenticated = false;
  std::thread thread;
  std::atomic<bool> ended = false;
};

Exchange::Exchange(const Options& options)
    : options_(options),
      socket_(listen_on(options.first_port, options.last_port, port_)),
      buffers_(kServedAtOnce * options.chunk_bytes, options.chunk_bytes) {
  acceptor_ = new_thread([this] { accept_all(); });
}

Exchange::~Exchange() {
  ended_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);  // connections are refused from now on
  {
    const std::lock_guard lock(mutex_);
    for (Client& client : clients_) {
      if (client.fd >= 0) ::shutdown(client.fd, SHUT_RDWR);
    }
  }
  acceptor_.join();
  for (Client& client : clients_) client.thread.join();
}

void Exchange::accept_all() {
  set_nonblocking(socket_);
  while (!ended_) {
    pollfd wait{socket_.get(), POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(kIdle.count())) <= 0 || ended_) continue;
    {
      const std::lock_guard lock(mutex_);  // the destructor walks through the list
      std::erase_if(clients_, [](Client& client) {
        if (!client.ended) return false;
        client.thread.join();
        return true;
      });
    }
    if (!may_accept()) {
      std::this_thread::sleep_for(kClosing);
      continue;
    }
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    try {
      if (!socket) fail_errno("accept");
      take_client(std::move(socket));
    } catch (const std::exception&) {
      // No descriptor or no thread is left: the next connection waits in the socket's queue.
      drop_oldest_unauthenticated();
      std::this_thread::sleep_for(options_.timeouts.look);
    }
  }
}

void Exchange::take_client(UniqueFd socket) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;  // the destructor has closed the others
  Client& client = clients_.emplace_back();
  client.fd = socket.get();
  client.socket = std::move(socket);
  try {
    client.thread = new_thread([this, &client] { serve_client(client); });
  } catch (const std::exception&) {
    clients_.pop_back();
    throw;
  }
}

// Makes room by dropping the oldest connection. Until its thread has closed it, the next one waits in the socket's queue.
bool Exchange::may_accept() {
  {
    const std::lock_guard lock(mutex_);
    const auto unknown = std::count_if(clients_.begin(), clients_.end(),
                                       [](const Client& client) { return !client.authenticated; });
    if (unknown < kMaxUnauthenticated) return true;
  }
  drop_oldest_unauthenticated();
  return false;
}

void Exchange::drop_oldest_unauthenticated() {
  const std::lock_guard lock(mutex_);
  const auto oldest = std::find_if(clients_.begin(), clients_.end(), [](const Client& client) {
    return !client.authenticated && client.fd >= 0;
  });
  if (oldest != clients_.end()) ::shutdown(oldest->fd, SHUT_RDWR);
}

void Exchange::serve_client(Client& client) {
  ::pthread_setname_np(::pthread_self(), kThreadName);
  const auto closing = [this, &client](void*) {
    const std::lock_guard lock(mutex_);
    client.fd = -1;
  };
  try {
    PeerLink link(std::move(client.socket), PeerLink::Role::server, options_.key, options_.step,
                  options_.timeouts);
    // Runs before the link, and with it the socket, is closed.
    const std::unique_ptr<void, decltype(closing)> before(this, closing);
    link.handshake(options_.node_id);
    {
      const std::lock_guard lock(mutex_);
      client.authenticated = true;
    }
    talk(link);
  } catch (const std::exception&) {
    // The connection was not authenticated, or is lost; the other side reports that.
  }
  client.ended = true;
}

void Exchange::talk(PeerLink& link) {
  const milliseconds alive_every = options_.timeouts.quiet / 5;
  Feed feed;
  auto now = std::chrono::steady_clock::now();
  auto sent = now;
  auto look_at = now;
  while (!ended_) {
    bool busy = false;
    if (now >= look_at) {
      if (const std::optional<std::string> line = link.receive(milliseconds(0))) {
        take_request(link, feed, *line);
        busy = true;
      } else {
        look_at = now + kBusyLook;
      }
    }
    wait_for_ring(feed);
    bool has_sent = false;
    if (feed.asked && feed.ring) {
      has_sent = send_next(link, feed);
    } else if (!busy) {
      std::unique_lock lock(mutex_);
      serves_more_.wait_for(lock, options_.timeouts.look);
    }
    now = std::chrono::steady_clock::now();
    if (has_sent) {
      sent = now;
      continue;
    }
    look_at = now;
    // Before it has asked for something, the successor expects no message: it may be slow, or stopped.
    if (!feed.asked || now - sent < alive_every) continue;
    const Ring::Progress progress = feed.ring ? feed.ring->progress() : Ring::Progress{};
    link.send(fmt::format("alive {} {} {:d}", feed.number, progress.to_send, progress.idle));
    sent = now;
  }
}

void Exchange::take_request(PeerLink& link, Feed& feed, const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  if (words.size() < 3) throw PeerError("unexpected message");
  const std::size_t number = parse_number(words[1]);
  std::vector<std::uint64_t> numbers;
  for (std::size_t i = 2; i < words.size(); ++i) numbers.push_back(parse_number(words[i]));
  const bool begins = words[0] == "lists" || words[0] == "want" || words[0] == "lane";
  if (begins) feed = {number, numbers[0], true, {}, {}, nullptr};
  if (number != feed.number) throw PeerError("it did not subscribe to this ring");
  if (words[0] == "lists") {
    feed.lists.assign(numbers.begin() + 1, numbers.end());
  } else if (words[0] == "want") {
    constexpr std::size_t kMaxBits = std::size_t{1} << 29U;
    const std::size_t bytes = numbers.size() == 2 ? numbers[1] : kMaxBits + 1;
    if (bytes > kMaxBits) throw PeerError("unexpected message");
    feed.wanted.emplace(bytes);
    link.receive_bytes(*feed.wanted);
  } else if (words[0] == "cancel") {
    if (feed.ring) feed.ring->successor_reads({numbers.begin(), numbers.end()}, true);
  } else if (words[0] == "read") {
    if (feed.ring) feed.ring->successor_reads({numbers.begin(), numbers.end()}, false);
  } else if (words[0] != "lane") {
    throw PeerError("unexpected message");
  }
}

// The successor may ask before this node is ready.
void Exchange::wait_for_ring(Feed& feed) {
  if (!feed.asked || feed.ring) return;
  {
    const std::lock_guard lock(mutex_);
    const auto found = rings_.find(feed.number);
    if (found == rings_.end()) return;
    feed.ring = found->second;
  }
  if (!feed.lists.empty()) feed.ring->successor_wants_lists(feed.generation, feed.lists);
  if (feed.wanted) feed.ring->successor_wants_chunks(feed.generation, *std::exchange(feed.wanted, {}));
}

// Sends one thing that is wanted and here, or waits for a moment and returns false.
bool Exchange::send_next(PeerLink& link, Feed& feed) {
  const Ring::Outgoing out = feed.ring->next_send(feed.generation, options_.timeouts.look, buffers_);
  switch (out.kind) {
    case Ring::Outgoing::Kind::nothing:
      return false;
    case Ring::Outgoing::Kind::stale:
      if (feed.ring->left()) link.send(fmt::format("gone {}", feed.number));
      throw PeerError("it has a newer connection, or all of the data");
    case Ring::Outgoing::Kind::list:
      link.send(fmt::format("list {} {} {} {} {}", feed.number, out.piece.source, out.piece.offset,
                            out.piece.total, out.text.size()),
                std::as_bytes(std::span(out.text)));
      return true;
    case Ring::Outgoing::Kind::lacks:
      link.send(fmt::format("lacks {} {}", feed.number, out.chunk.chunk));
      return true;
    case Ring::Outgoing::Kind::chunk:
      link.send(fmt::format("chunk {} {} {} {:d} {} {}", feed.number, out.chunk.chunk, out.chunk.origin,
                            out.idle, out.chunk.data.bytes().size(), pack::to_hex(out.chunk.digest)),
                out.chunk.data.bytes());
      return true;
  }
  return false;
}

void Exchange::serve(std::size_t number, std::shared_ptr<Ring> ring) {
  {
    const std::lock_guard lock(mutex_);
    rings_[number] = std::move(ring);
  }
  serves_more_.notify_all();
}

void Exchange::withdraw(std::size_t number) {
  std::shared_ptr<Ring> ring;
  {
    const std::lock_guard lock(mutex_);
    const auto found = rings_.find(number);
    if (found == rings_.end()) return;
    ring = std::move(found->second);
    rings_.erase(found);
  }
  ring->close();
}

std::unique_ptr<PeerLink> Exchange::connect(const RingPart::Peer& peer) const {
  UniqueFd socket;
  try {
    socket = connect_to(peer.hosts, peer.port, options_.timeouts.quiet, "it");
  } catch (const Error& error) {
    throw PeerLost(error.what());
  }
  auto link = std::make_unique<PeerLink>(std::move(socket), PeerLink::Role::client, options_.key,
                                         options_.step, options_.timeouts);
  const std::uint32_t found = link->handshake(options_.node_id);
  if (found != peer.node) throw PeerError(fmt::format("it is node {} of the step, not {}", found, peer.node));
  return link;
}

PeerGroup::PeerGroup(Rendezvous& rendezvous, const Exchange::Options& options, std::vector<std::string> names)
    : rendezvous_(rendezvous),
      self_(options.node_id),
      step_(options.step),
      exchange_(options),
      names_(std::move(names)) {
  std::vector<std::string> hosts{rendezvous.own_address(), name(self_)};
  const std::string address = address_in(options.peer_networks);
  uses_peer_network_ = !address.empty();
  if (uses_peer_network_) hosts = {address};
  rendezvous_.set_address({{"name", name(self_)}, {"hosts", hosts}, {"port", exchange_.port()}});
}

std::map<std::uint32_t, nlohmann::json> PeerGroup::hello(nlohmann::json data) {
  data["release"] = version();
  // All releases call the round by this name.
  std::map<std::uint32_t, nlohmann::json> messages = gather("places", std::move(data));
  check_releases(messages, *this);
  return messages;
}

std::map<std::uint32_t, nlohmann::json> PeerGroup::gather(const std::string& round, nlohmann::json data) {
  std::map<std::uint32_t, nlohmann::json> messages;
  const nlohmann::json all = rendezvous_.gather(round, std::move(data));
  for (const auto& [node, message] : all.items()) {
    if (!message.is_null()) messages.emplace(static_cast<std::uint32_t>(std::stoul(node)), message);
  }
  return messages;
}

std::string PeerGroup::name(std::uint32_t node) const {
  return node < names_.size() ? names_[node] : fmt::format("node {} of the step", node);
}

}  // namespace lockstep::transfer
