#include "tests/unit/staging/transfer/exchange/chain_world.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <filesystem>
#include <numeric>

#include "common/error.h"
#include "common/sockets.h"
#include "staging/rendezvous/chain_directory.h"
#include "staging/rendezvous/rendezvous_server.h"
#include "staging/transfer/exchange/chunk_shares.h"
#include "staging/transfer/exchange/peer_group.h"

namespace lockstep::transfer {
namespace {

using Node = ChainSchedule::Node;

void fill(std::size_t chunk, std::span<std::byte> into) {
  for (std::size_t at = 0; at < into.size(); ++at) into[at] = static_cast<std::byte>(chunk * 31 + at % 251);
}

std::vector<ChunkPlan> plans_of(const ChainOptions& options) {
  std::vector<ChunkPlan> plans;
  const auto file = [&](std::size_t source) {
    return options.files.begin() +
           static_cast<std::ptrdiff_t>(options.files.size() * source / options.sources);
  };
  for (std::size_t source = 0; source < options.sources; ++source)
    plans.emplace_back(std::vector<std::uint64_t>(file(source), file(source + 1)), options.chunk_bytes);
  return plans;
}

std::vector<const ChunkPlan*> pointers_to(const std::vector<ChunkPlan>& plans) {
  std::vector<const ChunkPlan*> pointers;
  for (const ChunkPlan& plan : plans) pointers.push_back(&plan);
  return pointers;
}

struct Member {
  std::unique_ptr<Rendezvous> rendezvous;
  std::unique_ptr<PeerGroup> peers;
  std::unique_ptr<ChainSchedule> schedule;
  std::unique_ptr<ChunkBuffers> buffers;
  std::uint64_t read = 0;
  std::uint64_t sent = 0;
  std::uint64_t rendezvous_bytes = 0;
  std::atomic<std::size_t> stored = 0;
  std::size_t connections = 0;
  std::atomic<std::size_t> accepted = 0;
  std::atomic<Node> predecessor = 0;
  std::set<std::pair<std::size_t, std::uint32_t>> opened;  // source, file
  bool needs = false;
  std::vector<std::size_t> initial;
  std::mutex mutex;
  std::vector<ChainHop> hops;
  std::jthread thread;
};

/// The helper of srun.
class Server {
 public:
  explicit Server(const ChainOptions& options) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("pipe");
    open_.reset(ends[0]);
    end_.reset(ends[1]);
    RendezvousServer::Options server;
    server.key = "key";
    server.join_timeout = options.join_timeout;
    server.reconnect_timeout = std::chrono::hours(1);
    server.silence_timeout = std::max(server.silence_timeout, 3 * options.timeouts.silence);
    server_ = std::make_unique<RendezvousServer>(listen_on(0, 0, port_), server);
    thread_ = std::thread([this] { server_->run(open_); });
  }
  ~Server() {
    end_.reset();
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  int port() const { return port_; }
  double cpu_seconds() {
    clockid_t clock{};
    timespec used{};
    if (::pthread_getcpuclockid(thread_.native_handle(), &clock) != 0 || ::clock_gettime(clock, &used) != 0)
      fail("cannot read the processor time of a thread");
    return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
  }

 private:
  UniqueFd open_, end_;
  int port_ = 0;
  std::unique_ptr<RendezvousServer> server_;
  std::thread thread_;
};

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

class Chain {
 public:
  explicit Chain(const ChainOptions& options)
      : options_(options),
        server_(options),
        plans_(plans_of(options)),
        plan_(pointers_to(plans_)),
        members_(options.nodes),
        ready_(static_cast<std::ptrdiff_t>(options.nodes) + 1),
        has_all_(static_cast<std::ptrdiff_t>(options.nodes) + 1) {
    for (const ChunkPlan& plan : plans_) bytes_ += plan.total_bytes();
    for (Node node = 0; node < options.nodes; ++node)
      members_[node].buffers = std::make_unique<ChunkBuffers>(4 * options.chunk_bytes, options.chunk_bytes);
  }

  ChainEnd run() {
    for (Node node = 0; node < options_.nodes; ++node)
      members_[node].thread = std::jthread([this, node] { take_part(node); });
    ready_.arrive_and_wait();
    std::vector<std::vector<std::size_t>> initial;
    for (Member& member : members_) initial.push_back(std::move(member.initial));
    const double cpu = cpu_seconds();
    if (options_.lost) lose(*options_.lost);
    has_all_.arrive_and_wait();
    ChainEnd end;
    end.cpu_seconds = cpu_seconds() - cpu;
    end.threads = (threads_ + options_.nodes - 1) / options_.nodes;
    end.chunks = plan_.size();
    for (Node node = 0; node < options_.nodes; ++node) {
      Member& member = members_[node];
      member.thread = {};
      end.read.push_back(member.read);
      end.sent.push_back(member.sent);
      end.connections = std::max(end.connections, member.connections + member.accepted);
      end.opens += member.opened.size();
      end.rendezvous_bytes += member.rendezvous_bytes;
      if (node != options_.lost && member.schedule)
        end.complete = end.complete && member.schedule->finished();
      end.hops.push_back(std::move(member.hops));
    }
    end.initial = std::move(initial);
    end.helper_seconds = server_.cpu_seconds();
    end.rounds = rounds_;
    end.notes = notes_;
    return end;
  }

 private:
  // All that a node does for one source (cooperative_put.cpp), without files.
  void take_part(Node node) {
    Member& member = members_[node];
    const Hello hello{1, "0", fmt::format("n{}", node), node, options_.nodes, "", "", false};
    member.rendezvous = std::make_unique<Rendezvous>(
        RendezvousAddress{server_.port(), {"127.0.0.1"}, "key", std::chrono::minutes(5)}, hello,
        [](const std::string&) {});
    member.peers = std::make_unique<PeerGroup>(*member.rendezvous,
                                               Exchange::Options{.key = "key",
                                                                 .step = "1.0",
                                                                 .node_id = node,
                                                                 .chunk_bytes = options_.chunk_bytes,
                                                                 .timeouts = options_.timeouts},
                                               hello.node);
    const bool looks = node == 0;
    nlohmann::json hello_data{{"at_once", 1U << 16U}};
    if (looks) {
      const nlohmann::json identity{std::string(32, 'a'), true, std::string(32, 'b')};
      hello_data["sources"] = std::vector<nlohmann::json>(options_.sources, identity);
    }
    count_round(node);
    member.peers->hello(std::move(hello_data));
    std::string states;
    for (std::size_t source = 0; source < options_.sources; ++source) {
      const bool holds = options_.holds ? options_.holds(node, source) : options_.holders.contains(node);
      states += static_cast<char>(holds ? SourceState::has : SourceState::needs);
      member.needs = member.needs || !holds;
    }
    count_round(node);
    const std::vector<ChainPart> parts = member.rendezvous->chains(states, 0);
    if (parts.size() != 1 || parts[0].sources.size() != options_.sources) fail("this is not one chain");
    const ChainPart& part = parts[0];
    member.schedule = std::make_unique<ChainSchedule>(
        ChainNode{node, part.place}, deal_chunks(plan_, part.nodes, part.held),
        [&](std::size_t chunk) {
          const bool missing = states[plan_.place(chunk).source] == static_cast<char>(SourceState::needs);
          if (!missing) member.initial.push_back(chunk);
          return missing;
        },
        options_.lanes);
    const auto compute = [](std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
      fill(chunk, into);
      digest = pack::digest_of(into);
      return true;
    };
    const auto lend = [](std::size_t /*chunk*/, pack::Digest& /*digest*/) { return LentChunk(); };
    member.peers->exchange().serve_chunks(
        0, std::make_shared<StreamChunks>(StreamChunks{plan_, *member.schedule, compute, lend}));
    ready_.arrive_and_wait();
    if (member.needs) {
      std::jthread reader([this, node] { read_share(node); });
      try {
        Subscription subscribed(subscription(node, part));
        subscribed.get_lists();
        std::vector<std::jthread> lanes;
        for (std::size_t lane = 1; lane < options_.lanes; ++lane)
          lanes.emplace_back(
              [&, other = subscribed.lane(lane)]() mutable { other.get_chunks(*member.schedule); });
        subscribed.get_chunks(*member.schedule);
      } catch (const Error&) {
        if (node != options_.lost) throw;
      }
      member.schedule->wait_until_end();
    }
    has_all_.arrive_and_wait();
    member.sent = member.peers->exchange().bytes_sent();
    member.rendezvous_bytes = member.rendezvous->bytes();
    if (node != options_.lost) {
      count_round(node);
      member.peers->gather("contents:0", nlohmann::json::object());
      member.rendezvous_bytes = member.rendezvous->bytes();
    }
    member.peers->exchange().withdraw(0);
    member.peers.reset();
    member.rendezvous.reset();
  }

  void count_round(Node node) {
    if (node == 0) ++rounds_;
  }

  void count_threads_once() {
    if (sampled_.exchange(true)) return;
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    threads_ = static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
  }

  // Closes all connections of a node, as the kernel does when its process is killed.
  void lose(Node node) {
    Member& member = members_[node];
    const auto enough = static_cast<std::uint64_t>(options_.lost_at * static_cast<double>(bytes_));
    while (successor_of(node).stored * options_.chunk_bytes < enough)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    member.schedule->stop();
    member.peers->exchange().end();
    member.rendezvous->leave();
  }

  void read_share(Node node) {
    Member& member = members_[node];
    while (const std::optional<std::size_t> chunk = member.schedule->take_own()) {
      if (options_.before_read) options_.before_read(node);
      const StreamPlan::Place place = plan_.place(*chunk);
      for (const Extent& extent : plans_[place.source].extents(place.chunk))
        member.opened.emplace(place.source, extent.file);
      member.read += plan_.bytes(*chunk);
      store(node, *chunk, node, node);
    }
  }

  Member& successor_of(Node node) { return members_[(node + 1) % options_.nodes]; }

  // As on links of one speed, the node has passed on what it gets, but for a few chunks. (What it has sent would not do:
  // if the successor has no processor, the buffers of its socket hold half of the data here, and nothing of 100 GB.)
  void keep_pace(Node node) {
    const std::size_t few = 4 * plan_.size() / options_.nodes + 4;
    while (members_[node].stored > successor_of(node).stored + few && !members_[node].schedule->finished())
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  void store(Node node, std::size_t chunk, Node from, Node origin) {
    Member& member = members_[node];
    if (++member.stored == plan_.size() / 2) count_threads_once();
    if (node == options_.lost) keep_pace(node);
    {
      const std::lock_guard lock(member.mutex);
      member.hops.push_back({chunk, from});
    }
    member.schedule->stored(chunk, origin);
  }

  Subscription::Options subscription(Node node, const ChainPart& part) {
    Member& member = members_[node];
    return {
        .topic = 0,
        .predecessor = part.predecessor,
        .timeouts = options_.timeouts,
        .name = [](Node other) { return fmt::format("n{}", other); },
        .connect =
            [this, &member](Node other) {
              ++member.connections;
              auto link = member.peers->connect(other);
              member.predecessor = other;
              ++members_[other].accepted;
              return link;
            },
        .pass_over = [&member](Node lost) { return member.rendezvous->pass_over(0, 0, lost); },
        .is_lost = [&member](Node asked) { return member.rendezvous->is_lost(asked); },
        .lists = {},
        .take_list = {},
        .make_list = {},
        .chunks_of =
            [this](std::size_t source) { return std::pair(plan_.first(source), plan_.first(source + 1)); },
        .bytes = [this](std::size_t chunk) { return plan_.bytes(chunk); },
        .buffer = [&member](std::uint32_t bytes) { return member.buffers->take(bytes); },
        .store =
            [this, node, &member](const ArrivedChunk& arrived) {
              store(node, arrived.chunk, member.predecessor, arrived.origin);
            },
        .predecessor_lacks = [] {},
        .note =
            [this, node](const std::string& text) {
              const std::lock_guard lock(mutex_);
              if (node != options_.lost) notes_.push_back(text);
            }};
  }

  const ChainOptions& options_;
  Server server_;
  std::vector<ChunkPlan> plans_;
  StreamPlan plan_;
  std::uint64_t bytes_ = 0;
  std::vector<Member> members_;
  std::barrier<> ready_, has_all_;
  std::size_t rounds_ = 0;
  std::atomic<bool> sampled_ = false;
  std::atomic<std::size_t> threads_ = 0;
  std::mutex mutex_;
  std::vector<std::string> notes_;
};

}  // namespace

std::uint64_t ChainEnd::max_sent() const {
  return *std::max_element(sent.begin(), sent.end());
}

std::uint64_t ChainEnd::all_read() const {
  return std::accumulate(read.begin(), read.end(), std::uint64_t{0});
}

ChainEnd run_chain(const ChainOptions& options) {
  return Chain(options).run();
}

}  // namespace lockstep::transfer
