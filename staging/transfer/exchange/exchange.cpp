#include "staging/transfer/exchange/exchange.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "common/error.h"
#include "common/sockets.h"
#include "common/thread.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kServedAtOnce = 8;  // chunks in memory for others
constexpr std::size_t kMaxUnauthenticated = 16;
constexpr milliseconds kBusyLook{5};  // between two looks for a request, while chunks are sent
constexpr milliseconds kClosing{1};   // between two checks for the end of a dropped connection
constexpr milliseconds kIdle{100};

}  // namespace

/// The wishes of one successor, for the chain that it asked for last.
struct Exchange::Feed {
  std::size_t topic = 0;
  std::deque<std::size_t> lists;       // of these sources
  std::vector<std::byte> wanted;       // a bit for each chunk
  std::shared_ptr<StreamChunks> from;  // that `next` counts in
  std::size_t next = 0;                // in the order in which chunks became available here
  std::deque<std::size_t> requested;   // wanted chunks that may be before `next`
  bool said_idle = false;

  bool wants(std::size_t chunk) const {
    return chunk / 8 < wanted.size() && (wanted[chunk / 8] >> (chunk % 8) & std::byte{1}) == std::byte{1};
  }
  void want(std::size_t chunk, bool now) {
    if (chunk / 8 >= wanted.size()) throw PeerError("it asks for a chunk that does not exist");
    const std::byte bit = std::byte{1} << (chunk % 8);
    wanted[chunk / 8] = now ? wanted[chunk / 8] | bit : wanted[chunk / 8] & ~bit;
  }
};

struct Exchange::Client {
  UniqueFd socket;
  int fd = -1;  // while it is open; this and the next two under the exchange's mutex
  bool authenticated = false;
  std::optional<std::size_t> in_use;  // the topic whose chunks its thread uses at the moment
  std::thread thread;
  std::atomic<bool> ended = false;
};

/// Gets the chunks of a topic for a client's thread. withdraw() waits until this object ends.
class Exchange::ChunksInUse {
 public:
  ChunksInUse(Exchange& exchange, Client& client, std::size_t topic) : exchange_(exchange), client_(client) {
    const std::lock_guard lock(exchange_.mutex_);
    const auto found = exchange_.topics_.find(topic);
    if (found == exchange_.topics_.end() || !found->second.chunks) return;
    chunks_ = found->second.chunks;
    client_.in_use = topic;
  }
  ~ChunksInUse() {
    if (!chunks_) return;
    {
      const std::lock_guard lock(exchange_.mutex_);
      client_.in_use.reset();
    }
    exchange_.unused_.notify_all();
  }
  ChunksInUse(const ChunksInUse&) = delete;
  ChunksInUse& operator=(const ChunksInUse&) = delete;

  /// Null if the topic has no chunks at the moment.
  const std::shared_ptr<StreamChunks>& get() const { return chunks_; }

 private:
  Exchange& exchange_;
  Client& client_;
  std::shared_ptr<StreamChunks> chunks_;
};

Exchange::Exchange(const Options& options)
    : options_(options),
      socket_(listen_on(options.first_port, options.last_port, port_)),
      buffers_(kServedAtOnce * options.chunk_bytes, options.chunk_bytes) {
  acceptor_ = new_thread([this] { accept_all(); });
}

Exchange::~Exchange() {
  end();
  acceptor_.join();
  for (Client& client : clients_) client.thread.join();
}

void Exchange::end() {
  ended_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);  // connections are refused from now on
  const std::lock_guard lock(mutex_);
  for (Client& client : clients_) {
    if (client.fd >= 0) ::shutdown(client.fd, SHUT_RDWR);
  }
}

void Exchange::accept_all() {
  set_nonblocking(socket_);
  while (!ended_) {
    pollfd wait{socket_.get(), POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(kIdle.count())) <= 0 || ended_) continue;
    {
      const std::lock_guard lock(mutex_);  // end() walks through the list
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
  if (ended_) return;  // end() has closed the others
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
  if (open + closing < kMaxUnauthenticated) return true;
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
    PeerLink link(std::move(client.socket), PeerLink::Role::server, options_.key, options_.step,
                  options_.timeouts);
    // Runs before the link, and with it the socket, is closed.
    const std::unique_ptr<void, decltype(closing)> before(this, closing);
    link.handshake(options_.node_id);
    {
      const std::lock_guard lock(mutex_);
      client.authenticated = true;
    }
    talk(client, link);
  } catch (const std::exception&) {
    // The connection was not authenticated, or is lost; the other side reports that.
  }
  client.ended = true;
}

void Exchange::talk(Client& client, PeerLink& link) {
  const milliseconds alive_every = options_.timeouts.silence / 5;
  Feed feed;
  auto now = std::chrono::steady_clock::now();
  auto sent = now;
  auto look_at = now;
  while (!ended_) {
    bool busy = false;
    if (now >= look_at) {
      if (const std::optional<std::string> line = link.receive(milliseconds(0))) {
        take_request(client, link, feed, *line);
        busy = true;
      } else {
        look_at = now + kBusyLook;
      }
    }
    if (send_next(client, link, feed)) {
      busy = true;
    } else {
      look_at = now;
    }
    now = std::chrono::steady_clock::now();
    if (busy) {
      sent = now;
    } else if (now - sent >= alive_every) {
      link.send("alive");
      sent = now;
    }
  }
}

// Waits for a moment; nullptr if it is not here yet.
std::shared_ptr<const std::string> Exchange::wait_for_list(std::size_t topic, std::size_t source) {
  std::unique_lock lock(mutex_);
  std::shared_ptr<const std::string> list;
  serves_more_.wait_for(lock, options_.timeouts.look, [&] {
    const auto found = topics_.find(topic);
    if (found == topics_.end() || !found->second.lists.contains(source)) return false;
    list = found->second.lists.at(source);
    return true;
  });
  return list;
}

void Exchange::take_request(Client& client, PeerLink& link, Feed& feed, const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  if (words.size() < 2) throw PeerError("unexpected message");
  const std::size_t topic = parse_number(words[1]);
  if (words[0] == "subscribe") {
    feed = Feed();
    feed.topic = topic;
    constexpr std::size_t kMaxBits = std::size_t{1} << 29U;
    const std::size_t bytes = words.size() == 3 ? parse_number(words[2]) : kMaxBits + 1;
    if (bytes > kMaxBits) throw PeerError("unexpected message");
    feed.wanted.resize(bytes);
    return link.receive_bytes(feed.wanted);
  }
  std::vector<std::size_t> numbers;
  for (std::size_t i = 2; i < words.size(); ++i) numbers.push_back(parse_number(words[i]));
  if (words[0] == "lists") {
    feed.topic = topic;
    feed.lists.insert(feed.lists.end(), numbers.begin(), numbers.end());
    return;
  }
  if (topic != feed.topic) throw PeerError("it did not subscribe to this chain");
  if (words[0] != "cancel" && words[0] != "again" && words[0] != "read")
    throw PeerError("unexpected message");
  for (const std::size_t chunk : numbers) feed.want(chunk, words[0] != "cancel");
  if (words[0] == "cancel") return;
  feed.requested.insert(feed.requested.end(), numbers.begin(), numbers.end());
  if (words[0] == "again") return;
  const ChunksInUse chunks(*this, client, topic);
  if (chunks.get()) chunks.get()->schedule.take_over(numbers);
  feed.said_idle = false;
}

// Sends one thing that is wanted and here, or waits for a moment and returns false.
bool Exchange::send_next(Client& client, PeerLink& link, Feed& feed) {
  if (!feed.lists.empty()) return send_list(link, feed);
  if (!feed.wanted.empty()) {
    const ChunksInUse chunks(*this, client, feed.topic);
    if (chunks.get()) {
      if (std::exchange(feed.from, chunks.get()) != chunks.get()) feed.next = 0;
      return send_chunk(link, feed, *chunks.get());
    }
  }
  std::unique_lock lock(mutex_);
  serves_more_.wait_for(lock, options_.timeouts.look);
  return false;
}

bool Exchange::send_list(PeerLink& link, Feed& feed) {
  const std::shared_ptr<const std::string> list = wait_for_list(feed.topic, feed.lists.front());
  if (!list) return false;
  link.send(fmt::format("list {} {} {}", feed.topic, feed.lists.front(), list->size()),
            std::as_bytes(std::span(*list)));
  feed.lists.pop_front();
  return true;
}

bool Exchange::send_chunk(PeerLink& link, Feed& feed, StreamChunks& chunks) {
  if (feed.wanted.size() != (chunks.plan.size() + 7) / 8) throw PeerError("it has another list of files");
  if (!feed.said_idle && chunks.schedule.idle()) {
    feed.said_idle = true;
    link.send(fmt::format("idle {}", feed.topic));
    return true;
  }
  for (std::size_t n = feed.requested.size(); n > 0; --n) {
    const std::size_t chunk = feed.requested.front();
    feed.requested.pop_front();
    if (!feed.wants(chunk)) continue;
    if (!chunks.schedule.is_here(chunk)) continue;  // it comes in its turn
    feed.want(chunk, false);
    send_one(link, feed.topic, chunks, chunk);
    return true;
  }
  while (const std::optional<std::size_t> chunk =
             chunks.schedule.wait_for(feed.next, static_cast<int>(options_.timeouts.look.count()))) {
    ++feed.next;
    if (!feed.wants(*chunk)) continue;
    feed.want(*chunk, false);
    send_one(link, feed.topic, chunks, *chunk);
    return true;
  }
  return false;
}

void Exchange::send_one(PeerLink& link, std::size_t topic, StreamChunks& chunks, std::size_t chunk) {
  pack::Digest digest;
  LentChunk data = chunks.lend(chunk, digest);
  if (!data) {
    ChunkBuffers::Buffer buffer = buffers_.take(chunks.plan.bytes(chunk));
    if (!chunks.read(chunk, buffer.bytes(), digest))
      return link.send(fmt::format("lacks {} {}", topic, chunk));
    data = std::make_shared<const ChunkBuffers::Buffer>(std::move(buffer));
  }
  link.send(fmt::format("chunk {} {} {} {} {}", topic, chunk, chunks.schedule.origin(chunk),
                        data->bytes().size(), pack::to_hex(digest)),
            data->bytes());
  bytes_sent_ += data->bytes().size();
}

void Exchange::serve_list(std::size_t topic, std::size_t source, std::shared_ptr<const std::string> list) {
  {
    const std::lock_guard lock(mutex_);
    topics_[topic].lists[source] = std::move(list);
  }
  serves_more_.notify_all();
}

void Exchange::serve_chunks(std::size_t topic, std::shared_ptr<StreamChunks> chunks) {
  {
    const std::lock_guard lock(mutex_);
    topics_[topic].chunks = std::move(chunks);
  }
  serves_more_.notify_all();
}

void Exchange::withdraw(std::size_t topic) {
  std::unique_lock lock(mutex_);
  topics_.erase(topic);
  const auto uses = [topic](const Client& client) { return client.in_use == topic; };
  // A successor that takes nothing would hold this node up. It gets what it lacks elsewhere.
  for (const Client& client : clients_) {
    if (uses(client) && client.fd >= 0) ::shutdown(client.fd, SHUT_RDWR);
  }
  unused_.wait(lock, [&] { return std::none_of(clients_.begin(), clients_.end(), uses); });
}

std::unique_ptr<PeerLink> Exchange::connect(const std::vector<std::string>& hosts, int port,
                                            std::uint32_t node_id) const {
  UniqueFd socket;
  try {
    socket = connect_to(hosts, port, options_.timeouts.silence, "it");
  } catch (const Error& error) {
    throw PeerLost(error.what());
  }
  auto link = std::make_unique<PeerLink>(std::move(socket), PeerLink::Role::client, options_.key,
                                         options_.step, options_.timeouts);
  const std::uint32_t found = link->handshake(options_.node_id);
  if (found != node_id) throw PeerError(fmt::format("it is node {} of the step, not {}", found, node_id));
  return link;
}

}  // namespace lockstep::transfer
