#include "tests/simulation/world.h"

#include <fmt/format.h>

#include "staging/transfer/copy/chunk_plan.h"

namespace lockstep::simulation {
namespace {

constexpr double kTimeLimit = 7200;
constexpr int kReaders = 4;
constexpr std::size_t kBuffers = 16;
constexpr double kSocketBuffer = 4 << 20;  // bytes on the way to the successor

}  // namespace

WorldEnd World::run() {
  set_up();
  for (Node& node : nodes_) on(node, options_.faults ? uniform(0, 0.2) : 0, [this, &node] { begin(node); });
  while (!events_.empty() && now_ < kTimeLimit && !settled()) {
    Event event = events_.top();
    events_.pop();
    now_ = event.at;
    event.action();
  }
  return judge();
}

bool World::settled() const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [](const Node& node) { return !node.running || node.finished_at < kNever; });
}

void World::begin(Node& node) {
  make_lists(node);
  lists_changed(node);
  if (nodes_.size() > 1) tick(node);
}

void World::make_lists(Node& node) {
  const std::optional<std::size_t> source = node.lists.next_to_make();
  if (!source) return;
  if (node.lost && node.no_source) return end(node, "cannot read the source");
  const double bytes = options_.list_bytes / static_cast<double>(options_.sources);
  on(node, bytes / node.reader, [this, &node, source = *source, bytes] {
    node.lists.made(source, static_cast<std::uint64_t>(bytes));
    lists_changed(node);
    pump_sends(node);
    make_lists(node);
  });
}

void World::lists_changed(Node& node) {
  if (!node.lists.complete() || node.reads_list) return;
  node.reads_list = true;
  on(node, node.prepare, [this, &node] { prepare(node); });
}

void World::prepare(Node& node) {
  node.ring.emplace(node.place, static_cast<std::uint32_t>(nodes_.size()), readers_, [&](std::size_t chunk) {
    return !holds(node.place, source_of_[chunk]) && node.disk_bytes[chunk] == Bytes::none;
  });
  if (node.lost) {
    node.ring->predecessor_lost();
    allowed_ += node.ring->size();
  }
  if (nodes_.size() > 1 && !node.lost && !node.ring->finished())
    connect(node);  // asks for chunks from now on
  if (node.asked_chunks) node.ring->successor_wants(node.wanted);
  if (node.ring->finished()) node.finished_at = now_;
  pump_reads(node);
  pump_sends(node);
}

// Every second: what RingClient does between messages, and the server's signs of life.
void World::tick(Node& node) {
  on(node, 1, [this, &node] { tick(node); });
  if (node.asked != 0 && now_ - node.sent_at >= 1 && reachable(node, next(node))) {
    Node& successor = next(node);
    const std::size_t ready = node.ring ? node.ring->to_send() : 0;
    const bool idle = node.ring && node.ring->idle();
    const std::uint64_t generation = node.asked;
    on(successor, options_.latency, [this, &successor, ready, idle, generation] {
      if (successor.generation != generation || !successor.connected) return;
      successor.watch.heard();
      successor.watch.has(ready);
      if (idle && successor.ring) hand_over(successor);
    });
  }
  if (node.lost || node.finished_at < kNever) return;
  switch (node.watch.tick(std::chrono::seconds(1))) {
    case PeerWatch::Next::wait:
    case PeerWatch::Next::retry:
      break;
    case PeerWatch::Next::connect:
      connect(node);
      break;
    case PeerWatch::Next::silent:
    case PeerWatch::Next::sends_none:
      // A node that runs and can be reached always says that it is alive.
      if (before(node).running && before(node).stopped_until == 0 && away_from_ == kNever) ++given_up_;
      if (!planted(Planted::left_dropped)) lose(node);
      break;
  }
  if (node.ring) send_changes(node);
}

void World::connect(Node& node) {
  Node& predecessor = before(node);
  predecessor.sent_again += predecessor.on_the_way.size();
  node.connected = false;
  node.watch.broken();
  node.watch.tries();
  ++node.generation;
  const std::uint64_t generation = node.generation;
  if (!reachable(node, predecessor) || predecessor.stopped_until > now_) return;
  on(node, 3 * options_.latency, [this, &node, &predecessor, generation] {
    if (generation != node.generation || !reachable(node, predecessor)) return;
    node.connected = true;
    node.watch.connected();
    subscribe(node);
  });
}

void World::subscribe(Node& node) {
  Node& predecessor = before(node);
  const std::uint64_t generation = node.generation;
  const bool chunks = node.ring.has_value();
  std::vector<std::byte> wanted;
  std::vector<std::size_t> handed_over;
  if (chunks) {
    wanted = node.ring->wanted();
    handed_over = node.ring->handed_over();
  }
  if (planted(Planted::handed_over_read)) {
    for (const std::size_t chunk : handed_over) node.ring->predecessor_lacks(chunk);
    pump_reads(node);
  }
  if (planted(Planted::not_asked_again) && generation > 1) return;
  on(predecessor, options_.latency, [this, &node, &predecessor, generation, chunks, wanted, handed_over] {
    if (generation != node.generation) return;
    predecessor.asked = generation;
    predecessor.on_the_way.clear();
    predecessor.sending = false;
    if (chunks) {
      predecessor.asked_chunks = true;
      predecessor.wanted = wanted;
      if (predecessor.ring) predecessor.ring->successor_wants(wanted);
    } else {
      for (const std::size_t source : node.lists.wanted()) predecessor.lists.successor_wants(source);
    }
    take_over(predecessor, handed_over);
  });
}

void World::lose(Node& node) {
  if (node.lost) return;
  node.lost = true;
  node.connected = false;
  ++node.generation;
  if (planted(Planted::loss_ignored)) return;
  node.lists.predecessor_lost();
  if (node.ring) {
    for (std::size_t chunk = 0; chunk < node.ring->size(); ++chunk) allowed_ += node.ring->has(chunk) ? 0 : 1;
    node.ring->predecessor_lost();
  }
  make_lists(node);
  pump_reads(node);
}

void World::end(Node& node, const std::string& line) {
  node.running = false;
  node.line = line;
  Node& successor = next(node);
  if (planted(Planted::left_dropped)) return;
  on(successor, uniform(0, 2), [this, &successor] { lose(successor); });
}

void World::pump_reads(Node& node) {
  if (!node.ring) return;
  while (node.running && node.reading < kReaders) {
    // Reading waits for memory too.
    if (node.storing >= kBuffers) return;
    const std::optional<std::size_t> chunk = node.ring->next_read();
    if (!chunk) break;
    if (node.no_source) return end(node, "cannot read the source");
    ++node.reading;
    ++node.storing;
    ++read_;
    opened_.emplace(node.place, file_of_[*chunk]);
    if (planted(Planted::read_twice) && *chunk % 7 == 0) ++read_;
    source_free_ = std::max(source_free_, now_) + options_.chunk_bytes / options_.source;
    const double took = std::max(options_.chunk_bytes / node.reader * kReaders, source_free_ - now_);
    on(node, took, [this, &node, c = *chunk] {
      --node.reading;
      take(node, c, Bytes::right);
      pump_reads(node);
    });
  }
  send_changes(node);
}

void World::send_changes(Node& node) {
  if (!node.connected) return;
  const std::vector<std::size_t> cancelled = node.ring->take_cancelled();
  if (cancelled.empty()) return;
  Node& predecessor = before(node);
  on(predecessor, options_.latency, [this, &predecessor, cancelled, generation = node.generation] {
    if (!predecessor.ring || predecessor.asked != generation) return;
    for (const std::size_t chunk : cancelled) predecessor.ring->successor_reads(chunk);
    pump_reads(predecessor);
  });
}

void World::hand_over(Node& node) {
  const std::vector<std::size_t> chunks = node.ring->hand_over();
  if (chunks.empty() || !node.connected) return;
  Node& predecessor = before(node);
  on(predecessor, options_.latency, [this, &predecessor, chunks, generation = node.generation] {
    if (predecessor.asked == generation) take_over(predecessor, chunks);
  });
}

void World::take_over(Node& node, const std::vector<std::size_t>& chunks) {
  if (node.ring && !planted(Planted::hand_over_lost)) {
    for (const std::size_t chunk : chunks) node.ring->successor_hands_over(chunk);
    pump_reads(node);
  }
  pump_sends(node);
}

// A chunk is in memory and right: the successor may have it, and it is stored.
void World::take(Node& node, std::size_t chunk, Bytes bytes) {
  const double begin = std::max(node.disk_free, now_);
  node.disk_free = begin + options_.chunk_bytes / node.disk;
  node.ring->checked(chunk);
  node.disk_bytes[chunk] = planted(Planted::freed_early) ? Bytes::none : bytes;
  pump_sends(node);
  on(node, node.disk_free - now_, [this, &node, chunk, bytes] { store(node, chunk, bytes); });
}

void World::store(Node& node, std::size_t chunk, Bytes bytes) {
  --node.storing;
  if (planted(Planted::chunk_lost) && chunk == 5 && node.place == 1) return;
  node.disk_bytes[chunk] = bytes;
  node.ring->stored(chunk);
  ++node.stored;
  if (node.place == options_.killed &&
      static_cast<double>(node.stored) >= options_.killed_at * static_cast<double>(options_.chunks))
    return end(node, "killed");
  while (!node.inbox.empty() && node.storing < kBuffers) {
    const Action action = std::move(node.inbox.front());
    node.inbox.pop_front();
    action();
  }
  pump_reads(node);
  if (!node.ring->finished() || node.finished_at < kNever) return;
  node.finished_at = now_;
}

void World::pump_sends(Node& node) {
  if (node.sending || node.asked == 0 || !node.running) return;
  Node& successor = next(node);
  const std::uint64_t generation = node.asked;
  if (const auto piece = node.lists.next_send()) {
    node.sending = true;
    node.sent_at = now_;
    on(node, static_cast<double>(piece->bytes) / options_.link,
       [this, &node, generation, piece = *piece] { deliver_piece(node, generation, piece); });
    return;
  }
  if (!node.ring || !node.asked_chunks) return;
  const auto buffered = static_cast<std::size_t>(kSocketBuffer / options_.chunk_bytes);
  if (node.on_the_way.size() > std::max<std::size_t>(buffered, 1)) return;
  const bool idle = node.ring->idle();
  const std::optional<std::size_t> chunk = node.ring->next_send();
  if (!chunk) return;
  node.sending = true;
  node.sent_at = now_;
  const Bytes bytes = node.disk_bytes[*chunk];
  if (bytes == Bytes::none && !planted(Planted::freed_early)) {  // a holder's file is gone
    on(successor, options_.latency, [this, &successor, generation, c = *chunk] {
      if (successor.generation != generation || planted(Planted::lacks_ignored)) return;
      successor.watch.heard();
      ++allowed_;
      successor.ring->predecessor_lacks(c);
      pump_reads(successor);
    });
    node.sending = false;
    return pump_sends(node);
  }
  ++node.sent;
  node.on_the_way.insert(*chunk);
  on(node, options_.chunk_bytes / options_.link,
     [this, &node, generation, c = *chunk, bytes, idle] { deliver(node, generation, c, bytes, idle); });
}

void World::deliver_piece(Node& node, std::uint64_t generation, const ListRelay::Piece& piece) {
  Node& successor = next(node);
  if (!can_deliver(node, generation,
                   [this, &node, generation, piece] { deliver_piece(node, generation, piece); }))
    return;
  node.sending = false;
  if (!(planted(Planted::piece_lost) && piece.offset > 0))
    on(successor, options_.latency, [this, &successor, generation, piece] {
      if (successor.generation != generation || !successor.connected) return;
      successor.watch.heard();
      successor.watch.progressed();
      if (!successor.lists.arrived(piece.source, piece.offset, piece.bytes, piece.total)) return;
      lists_changed(successor);
      pump_sends(successor);
    });
  pump_sends(node);
}

// While the network is away, the bytes stay on the way.
bool World::can_deliver(Node& node, std::uint64_t generation, const Action& again) {
  Node& successor = next(node);
  if (generation != node.asked) return false;  // the connection was replaced meanwhile
  if (!reachable(node, successor)) {
    if (successor.running) on(node, 0.2, again);
    return false;
  }
  if (generation == successor.generation) return true;
  node.asked = 0;  // the successor has closed this connection
  node.sending = false;
  return false;
}

void World::deliver(Node& node, std::uint64_t generation, std::size_t c, Bytes bytes, bool idle) {
  Node& successor = next(node);
  if (!can_deliver(node, generation,
                   [this, &node, generation, c, bytes, idle] { deliver(node, generation, c, bytes, idle); }))
    return;
  const auto done = [this, &node, c, generation] {
    if (generation != node.asked) return;
    node.on_the_way.erase(c);
    pump_sends(node);
  };
  node.sending = false;
  after(options_.latency, [this, &successor, generation, c, bytes, idle, done] {
    if (!successor.running) return;
    if (successor.storing >= kBuffers || !successor.inbox.empty()) {
      // The connection is full until the successor takes the chunk.
      successor.inbox.push_back([this, &successor, generation, c, bytes, idle, done] {
        arrive(successor, generation, c, bytes, idle);
        done();
      });
      return;
    }
    on(successor, 0, [this, &successor, generation, c, bytes, idle, done] {
      arrive(successor, generation, c, bytes, idle);
      done();
    });
  });
  pump_sends(node);
}

void World::arrive(Node& node, std::uint64_t generation, std::size_t chunk, Bytes bytes, bool idle) {
  if (node.generation != generation || !node.connected || !node.ring) return;
  node.watch.heard();
  node.watch.progressed();
  if (idle) hand_over(node);
  if (!node.ring->begin_receiving(chunk)) return;
  const bool damaged = bytes != Bytes::right;
  if (damaged && planted(Planted::damage_sent_on)) {
    ++node.storing;
    return take(node, chunk, bytes);
  }
  if (damaged && !planted(Planted::digest_not_checked)) {
    if (bytes == Bytes::wrong) ++allowed_;
    node.ring->arrived_damaged(chunk);
    return pump_reads(node);
  }
  ++node.storing;
  take(node, chunk, bytes);
  pump_reads(node);
}

WorldEnd play(const WorldOptions& options) {
  return World(options).run();
}

void World::set_up() {
  const std::uint32_t count = options_.nodes;
  nodes_.resize(count);
  if (options_.faults && chance(0.4)) {
    for (std::uint32_t i = 0; i < 1 + any(3); ++i) holders_.insert(any(count));
  }
  holders_.insert(options_.holders.begin(), options_.holders.end());
  // Files of a few chunks, which are divided between the sources.
  std::vector<transfer::ChunkPlan> plans;
  std::size_t files = 0;
  for (std::size_t source = 0; source < options_.sources; ++source) {
    const std::size_t chunks =
        options_.chunks * (source + 1) / options_.sources - options_.chunks * source / options_.sources;
    std::vector<std::uint64_t> sizes;
    for (std::size_t left = chunks; left > 0; left -= sizes.back()) {
      sizes.push_back(std::min<std::size_t>(left, options_.faults ? 1 + any(20) : 8));
      source_of_.insert(source_of_.end(), sizes.back(), source);
      file_of_.insert(file_of_.end(), sizes.back(), files++);
    }
    plans.emplace_back(std::move(sizes), 1);
  }
  std::vector<const transfer::ChunkPlan*> pointers;
  for (const transfer::ChunkPlan& plan : plans) pointers.push_back(&plan);
  const transfer::StreamPlan stream(std::move(pointers));
  std::vector<bool> held(options_.sources, !holders_.empty() || options_.rotating);
  readers_ = transfer::deal_chunks(stream, count, held);
  unheld_ = held.front() ? 0 : stream.size();
  for (std::uint32_t place = 0; place < count; ++place) {
    Node& node = nodes_[place];
    node.place = place;
    node.reader = options_.reader * (chance(0.1) ? 0.1 : 1);
    node.disk = options_.disk * (chance(0.1) ? 0.05 : 1);
    node.prepare = options_.prepare * (chance(0.1) ? 100 : 1);
    node.no_source = held.front() && chance(0.05);
    const bool has = holders_.contains(place);
    for (const std::size_t source : source_of_)
      node.disk_bytes.push_back(holds(place, source) ? Bytes::right : Bytes::none);
    if (has && chance(0.3)) node.disk_bytes[any(static_cast<std::uint32_t>(stream.size()))] = Bytes::wrong;
    if (has && chance(0.1)) node.disk_bytes[any(static_cast<std::uint32_t>(stream.size()))] = Bytes::none;
    std::vector<ListRelay::From> lists;
    for (std::size_t source = 0; source < options_.sources; ++source) {
      const bool makes = holds(place, source) || (place == 0 && !held.front()) || count == 1;
      lists.push_back(makes ? ListRelay::From::here : ListRelay::From::predecessor);
    }
    node.lists = ListRelay(lists);
  }
  const double length = 2 * static_cast<double>(stream.size()) * options_.chunk_bytes / options_.link + 0.2;
  const auto kill = [&](Node& node, double when) {
    at(when, [this, &node] {
      if (node.running && node.line.empty()) end(node, "killed");
    });
  };
  for (std::uint32_t i = 0; chance(0.5) && i < 1 + count / 16; ++i)
    kill(nodes_[any(count)], uniform(0, length));
  for (std::uint32_t i = 0; chance(0.3) && i < 3; ++i) {
    Node& node = nodes_[any(count)];
    at(uniform(0, length), [this, &node] { node.stopped_until = now_ + uniform(1, 60); });
  }
  if (chance(0.2)) {
    away_from_ = uniform(0, length);
    away_until_ = away_from_ + uniform(1, 45);
    for (std::uint32_t i = 0; i < 1 + any(count); ++i) away_.insert(any(count));
  }
}

bool World::holds(std::uint32_t place, std::size_t source) const {
  return options_.rotating ? source % nodes_.size() == place : holders_.contains(place);
}

WorldEnd World::judge() {
  WorldEnd end;
  const auto chunks = static_cast<double>(options_.chunks);
  for (const Node& node : nodes_) {
    const auto note = [&](const std::string& problem) {
      if (end.problem.empty()) end.problem = "node " + std::to_string(node.place) + " " + problem;
    };
    end.sent_max_ratio = std::max(end.sent_max_ratio, static_cast<double>(node.sent) / chunks);
    if (node.sent > options_.chunks + node.sent_again + 1)
      note(fmt::format("sent more than the data once: {} of {} chunks, {} of them again", node.sent,
                       options_.chunks, node.sent_again));
    if (!node.line.empty()) {
      ++end.failed;
      continue;
    }
    if (node.finished_at >= kNever) {
      note("did not end");
      continue;
    }
    ++end.complete;
    end.seconds = std::max(end.seconds, node.finished_at);
    if (holders_.contains(node.place)) continue;  // a holder may have had a damaged chunk
    for (const Bytes bytes : node.disk_bytes) end.published_wrong += bytes == Bytes::right ? 0 : 1;
    if (end.published_wrong > 0) note("published wrong bytes");
  }
  end.source_ratio = static_cast<double>(read_) / chunks;
  end.opens = opened_.size();
  if (given_up_ > 0 && end.problem.empty()) end.problem = "a node that is well was given up";
  if (read_ > unheld_ + allowed_ && end.problem.empty())
    end.problem =
        fmt::format("the source was read too often: {} chunks, {} + {} allowed", read_, unheld_, allowed_);
  return end;
}

}  // namespace lockstep::simulation
