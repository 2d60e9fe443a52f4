#include "staging/transfer/exchange/exchange.h"

#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>

#include "common/error.h"
#include "common/sockets.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kServedAtOnce = 8;  // chunks in memory for others
constexpr std::size_t kMaxUnauthenticated = 1024;
constexpr std::size_t kMaxWaiting = 64;  // requests of one node
constexpr milliseconds kLook{5};         // between two looks for a chunk that is not here yet
constexpr milliseconds kClosing{1};      // between two checks for the end of a dropped connection
constexpr milliseconds kIdle{100};

// Only a part of the descriptors: the copy needs some too.
std::size_t max_unauthenticated() {
  rlimit open{};
  if (::getrlimit(RLIMIT_NOFILE, &open) != 0) return kMaxUnauthenticated;
  return std::clamp<std::size_t>(open.rlim_cur / 4, 16, kMaxUnauthenticated);
}

}  // namespace

struct Exchange::Request {
  enum class Kind { list, chunk, idle };

  static Request parse(const std::string& line) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() == 2 && words[0] == "list") return {Kind::list, parse_number(words[1])};
    if (words.size() == 2 && words[0] == "idle") return {Kind::idle, parse_number(words[1])};
    if (words.size() == 3 && words[0] == "get")
      return {Kind::chunk, parse_number(words[1]), parse_number(words[2])};
    throw PeerError("unexpected message");
  }

  Kind kind = Kind::list;
  std::size_t topic = 0;
  std::size_t chunk = 0;
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
  acceptor_ = std::thread([this] { accept_all(); });
}

Exchange::~Exchange() {
  ended_ = true;
  acceptor_.join();
  for (Client& client : clients_) client.thread.join();
}

void Exchange::accept_all() {
  set_nonblocking(socket_);
  while (!ended_) {
    pollfd wait{socket_.get(), POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(kIdle.count())) <= 0) continue;
    std::erase_if(clients_, [](Client& client) {
      if (!client.ended) return false;
      client.thread.join();
      return true;
    });
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
      std::this_thread::sleep_for(kLook);
    }
  }
}

void Exchange::take_client(UniqueFd socket) {
  Client& client = clients_.emplace_back();
  client.fd = socket.get();
  client.socket = std::move(socket);
  try {
    client.thread = std::thread([this, &client] { serve_client(client); });
  } catch (const std::exception&) {
    clients_.pop_back();
    throw;
  }
}

// Makes room by dropping the oldest connection, whose descriptor stays open until its thread has closed it.
// Meanwhile the next connection waits in the socket's queue.
bool Exchange::may_accept() {
  std::size_t open = 0;
  std::size_t closing = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const Client& client : clients_) {
      if (!client.authenticated) ++(client.fd >= 0 ? open : closing);
    }
  }
  if (open + closing < max_unauthenticated()) return true;
  if (closing == 0) drop_oldest_unauthenticated();
  return false;
}

void Exchange::drop_oldest_unauthenticated() {
  const std::lock_guard lock(mutex_);
  for (Client& client : clients_) {
    if (client.authenticated || client.fd < 0) continue;
    ::shutdown(client.fd, SHUT_RDWR);
    client.fd = -1;
    return;
  }
}

void Exchange::serve_client(Client& client) {
  ::pthread_setname_np(::pthread_self(), kThreadName);
  const auto closing = [this, &client](void*) {
    const std::lock_guard lock(mutex_);
    client.fd = -1;
  };
  try {
    PeerLink link(std::move(client.socket), Session::Role::server, options_.key, options_.step,
                  options_.timeouts);
    // Runs before the link, and with it the socket, is closed.
    const std::unique_ptr<void, decltype(closing)> before(this, closing);
    const std::uint32_t node = link.handshake(options_.node_id);
    {
      const std::lock_guard lock(mutex_);
      client.authenticated = true;
    }
    talk(link, node);
  } catch (const std::exception&) {
    // The connection was not authenticated, or is lost; the other side reports that.
  }
  client.ended = true;
}

void Exchange::talk(PeerLink& link, std::uint32_t node) {
  const milliseconds alive_every = options_.timeouts.silence / 5;
  std::deque<Request> waiting;
  auto answered = std::chrono::steady_clock::now();
  while (!ended_) {
    if (const std::optional<std::string> line = link.receive(waiting.empty() ? kIdle : kLook)) {
      if (waiting.size() > kMaxWaiting) throw PeerError("too many requests");
      waiting.push_back(Request::parse(*line));
    }
    const std::size_t before = waiting.size();
    std::erase_if(waiting, [&](const Request& request) { return answer(link, node, request); });
    const auto now = std::chrono::steady_clock::now();
    if (waiting.size() != before) answered = now;
    if (!waiting.empty() && now - answered >= alive_every) {
      link.send("alive");
      answered = now;
    }
  }
}

// False if there is no answer yet.
bool Exchange::answer(PeerLink& link, std::uint32_t node, const Request& request) {
  const std::shared_lock in_use(serving_);
  Topic topic;
  {
    const std::lock_guard lock(mutex_);
    const auto found = topics_.find(request.topic);
    if (found != topics_.end()) topic = found->second;
  }
  if (request.kind == Request::Kind::list) {
    if (!topic.list) return false;
    const auto bytes = std::as_bytes(std::span(*topic.list));
    link.send(fmt::format("list {} {} {}", request.topic, bytes.size(), pack::to_hex(pack::digest_of(bytes))),
              bytes);
    return true;
  }
  if (!topic.chunks) return false;
  if (request.kind == Request::Kind::idle) {
    topic.chunks->help_from(node);
    return true;
  }
  const ChunkProvider::State state = topic.chunks->state(request.chunk, node);
  if (state == ChunkProvider::State::coming) return false;
  if (state == ChunkProvider::State::here) {
    const ChunkBuffers::Buffer buffer = buffers_.try_take(topic.chunks->bytes(request.chunk));
    if (!buffer) return false;  // other nodes are being served
    pack::Digest digest;
    if (topic.chunks->read(request.chunk, buffer.bytes(), digest)) {
      link.send(fmt::format("chunk {} {} {} {}", request.topic, request.chunk, buffer.bytes().size(),
                            pack::to_hex(digest)),
                buffer.bytes());
      return true;
    }
  }
  link.send(fmt::format("elsewhere {} {}", request.topic, request.chunk));
  return true;
}

void Exchange::serve_list(std::size_t topic, std::shared_ptr<const std::string> list) {
  const std::lock_guard lock(mutex_);
  topics_[topic].list = std::move(list);
}

void Exchange::serve_chunks(std::size_t topic, std::shared_ptr<ChunkProvider> chunks) {
  const std::lock_guard lock(mutex_);
  topics_[topic].chunks = std::move(chunks);
}

void Exchange::withdraw(std::size_t topic) {
  {
    const std::lock_guard lock(mutex_);
    topics_.erase(topic);
  }
  const std::unique_lock unused(serving_);
}

std::unique_ptr<PeerLink> Exchange::connect(const std::vector<std::string>& hosts, int port,
                                            std::uint32_t node_id) const {
  UniqueFd socket;
  try {
    socket = connect_to(hosts, port, options_.timeouts.silence, "it");
  } catch (const Error& error) {
    throw PeerError(error.what());
  }
  auto link = std::make_unique<PeerLink>(std::move(socket), Session::Role::node, options_.key, options_.step,
                                         options_.timeouts);
  const std::uint32_t found = link->handshake(options_.node_id);
  if (found != node_id) throw PeerError(fmt::format("it is node {} of the step, not {}", found, node_id));
  return link;
}

}  // namespace lockstep::transfer
