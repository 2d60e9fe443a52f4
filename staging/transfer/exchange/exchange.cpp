#include "staging/transfer/exchange/exchange.h"

#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>

#include "common/error.h"
#include "staging/rendezvous/rendezvous_socket.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kServedAtOnce = 8;  // chunks in memory for others
constexpr std::size_t kMaxClients = 4096;
constexpr std::size_t kMaxStrangers = 1024;  // who have not proved themselves yet
constexpr std::size_t kMaxAsked = 64;        // by one of them
constexpr milliseconds kLook{5};             // how often a chunk that is not there yet is looked for
constexpr milliseconds kClosing{1};          // how often it looks whether what it dropped is closed
constexpr milliseconds kIdle{500};

// A part of the descriptors, since the copy needs some too.
std::size_t most_strangers() {
  rlimit open{};
  if (::getrlimit(RLIMIT_NOFILE, &open) != 0) return kMaxStrangers;
  return std::clamp<std::size_t>(open.rlim_cur / 4, 16, kMaxStrangers);
}

}  // namespace

struct Exchange::Asked {
  std::size_t topic = 0;
  std::size_t chunk = 0;
  bool list = false;
};

struct Exchange::Client {
  UniqueFd socket;
  int fd = -1;          // while it is open; with proven, under the exchange's mutex
  bool proven = false;  // it has the key
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
    if (::poll(&wait, 1, static_cast<int>(kIdle.count() / 5)) <= 0) continue;
    std::erase_if(clients_, [](Client& client) {
      if (!client.ended) return false;
      client.thread.join();
      return true;
    });
    if (!has_room_for_a_stranger()) {
      std::this_thread::sleep_for(kClosing);
      continue;
    }
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    try {
      if (!socket) fail_errno("accept");
      take_client(std::move(socket));
    } catch (const std::exception&) {
      // No descriptor or no thread is left: it waits in the socket's queue, or is closed and tries again.
      drop_oldest_stranger();
      std::this_thread::sleep_for(kLook);
    }
  }
}

void Exchange::take_client(UniqueFd socket) {
  if (clients_.size() >= kMaxClients) drop_oldest_stranger();
  if (clients_.size() >= 2 * kMaxClients) return;
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

// Makes it by dropping the oldest. One that is dropped has its descriptor until its thread has closed it:
// then the next waits in the socket's queue.
bool Exchange::has_room_for_a_stranger() {
  std::size_t open = 0;
  std::size_t closing = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const Client& client : clients_) {
      if (!client.proven) ++(client.fd >= 0 ? open : closing);
    }
  }
  if (open + closing < most_strangers()) return true;
  if (closing == 0) drop_oldest_stranger();
  return false;
}

void Exchange::drop_oldest_stranger() {
  const std::lock_guard lock(mutex_);
  for (Client& client : clients_) {
    if (client.proven || client.fd < 0) continue;
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
    Link link(std::move(client.socket), Session::Role::server, options_.key, options_.step,
              options_.patience);
    // Before the link, and with it the socket, is closed.
    const std::unique_ptr<void, decltype(closing)> before(this, closing);
    link.shake_hands(options_.node_id);
    {
      const std::lock_guard lock(mutex_);
      client.proven = true;
    }
    talk(link);
  } catch (const std::exception&) {
    // A stranger, or one that is gone; the other side says what it makes of it.
  }
  client.ended = true;
}

void Exchange::talk(Link& link) {
  const milliseconds alive_every = options_.patience.silence / 5;
  std::deque<Asked> waiting;
  auto told = std::chrono::steady_clock::now();
  while (!ended_) {
    const std::optional<std::string> line = link.receive(waiting.empty() ? kIdle / 5 : kLook);
    if (line) {
      const std::vector<std::string> words = words_of(*line);
      if (words.size() < 2 || waiting.size() > kMaxAsked) throw PeerError("it makes no sense");
      const std::size_t topic = number_of(words[1]);
      if (words[0] == "cede") {
        std::string answer = fmt::format("ceded {}", topic);
        const std::shared_ptr<Shelf> from = shelf(topic);
        if (from && words.size() == 3) {
          for (const std::size_t chunk : from->cede(static_cast<std::uint32_t>(number_of(words[2])))) {
            answer += fmt::format(" {}", chunk);
          }
        }
        link.send(answer);
      } else if (words[0] == "list") {
        waiting.push_back({topic, 0, true});
      } else if (words[0] == "get" && words.size() == 3) {
        waiting.push_back({topic, number_of(words[2]), false});
      } else {
        throw PeerError("it makes no sense");
      }
    }
    const std::size_t before = waiting.size();
    std::erase_if(waiting, [&](const Asked& asked) { return answer(link, asked); });
    const auto now = std::chrono::steady_clock::now();
    if (waiting.size() != before) told = now;
    if (!waiting.empty() && now - told >= alive_every) {
      link.send("alive");
      told = now;
    }
  }
}

bool Exchange::answer(Link& link, const Asked& asked) {
  const std::shared_ptr<Shelf> from = shelf(asked.topic);
  if (!from) return false;
  if (asked.list) {
    const std::shared_ptr<const std::string> list = from->list();
    const auto bytes = list ? std::as_bytes(std::span(*list)) : std::span<const std::byte>();
    link.send(fmt::format("list {} {} {}", asked.topic, bytes.size(), pack::to_hex(pack::digest_of(bytes))),
              bytes);
    return true;
  }
  if (from->chunks() == 0) return false;  // only the list is there yet
  if (asked.chunk < from->chunks() && !from->has(asked.chunk)) {
    const std::optional<std::uint32_t> node = from->moved(asked.chunk);
    if (node) link.send(fmt::format("moved {} {} {}", asked.topic, asked.chunk, *node));
    return node.has_value();
  }
  if (asked.chunk < from->chunks()) {
    const ChunkBuffers::Buffer buffer = buffers_.try_take(from->bytes(asked.chunk));
    if (!buffer) return false;  // others are being served; this one hears that we are alive
    pack::Digest digest;
    if (from->read(asked.chunk, buffer.bytes(), digest)) {
      link.send(fmt::format("chunk {} {} {} {}", asked.topic, asked.chunk, buffer.bytes().size(),
                            pack::to_hex(digest)),
                buffer.bytes());
      return true;
    }
  }
  link.send(fmt::format("gone {} {}", asked.topic, asked.chunk));
  return true;
}

std::shared_ptr<Shelf> Exchange::shelf(std::size_t topic) {
  const std::lock_guard lock(mutex_);
  const auto found = shelves_.find(topic);
  if (found == shelves_.end()) return {};
  // Tells withdraw() when it is returned.
  return {found->second.get(), [this, held = found->second](Shelf*) mutable {
            {
              const std::lock_guard inner(mutex_);
              held.reset();
            }
            returned_.notify_all();
          }};
}

void Exchange::serve(std::size_t topic, std::shared_ptr<Shelf> shelf) {
  const std::lock_guard lock(mutex_);
  shelves_.insert_or_assign(topic, std::move(shelf));
}

void Exchange::leave() {
  ended_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);
}

void Exchange::withdraw(std::size_t topic) {
  std::unique_lock lock(mutex_);
  const auto found = shelves_.find(topic);
  if (found == shelves_.end()) return;
  const std::shared_ptr<Shelf> last = std::move(found->second);
  shelves_.erase(found);
  returned_.wait(lock, [&] { return last.use_count() == 1; });
}

std::unique_ptr<Link> Exchange::connect(const std::vector<std::string>& hosts, int port,
                                        std::uint32_t node_id) const {
  UniqueFd socket;
  try {
    socket = connect_to(hosts, port, options_.patience.silence, "it");
  } catch (const Error& error) {
    throw PeerError(error.what());
  }
  auto link = std::make_unique<Link>(std::move(socket), Session::Role::node, options_.key, options_.step,
                                     options_.patience);
  const std::uint32_t found = link->shake_hands(options_.node_id);
  if (found != node_id) throw PeerError(fmt::format("it is node {} of the step, not {}", found, node_id));
  return link;
}

}  // namespace lockstep::transfer
