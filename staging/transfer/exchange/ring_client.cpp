#include "staging/transfer/exchange/ring_client.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/clock.h"
#include "common/error.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr std::size_t kNumbersInLine = 256;  // a line has 8,192 bytes
constexpr milliseconds kLaneRate{250};       // how long the first connection is measured
constexpr const char* kHasLeft = "it has left the step";
constexpr const char* kSendsNone = "it has chunks and sends none";

void send_numbers(PeerLink& link, const std::string& line, const std::vector<std::size_t>& numbers) {
  for (std::size_t at = 0; at < numbers.size(); at += kNumbersInLine) {
    const auto part = std::span(numbers).subspan(at, std::min(kNumbersInLine, numbers.size() - at));
    link.send(fmt::format("{} {}", line, fmt::join(part, " ")));
  }
}

nanoseconds thread_cpu_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

}  // namespace

RingClient::RingClient(Ring& ring, PeerGroup& peers, Options options)
    : ring_(ring),
      peers_(peers),
      options_(std::move(options)),
      watch_(timeouts()),
      lanes_(std::max<std::size_t>(options_.context.options.sizes.lanes, 1)) {
}

void RingClient::get_lists() {
  follow();
}

void RingClient::get_chunks() {
  chunks_ = true;
  if (lost_) ring_.predecessor_lost();
  time_.tick();  // what happened in between was this node's work
  watch_ = PeerWatch(timeouts());
  follow();
  stop();
}

void RingClient::stop() {
  lanes_ = options_.max_lanes;
  lanes_.notify_all();
}

bool RingClient::done() {
  return chunks_ ? ring_.finished() : ring_.lists()->wanted().empty();
}

void RingClient::follow() {
  while (!done() && !lost_ && options_.part.nodes > 1) {
    if (const std::string why = try_once(); !why.empty()) lose(why);
  }
}

void RingClient::lose(const std::string& why) {
  lost_ = true;
  // The node itself, or the plugin there, says why it has left.
  if (why != kHasLeft) {
    options_.context.tally.note(
        fmt::format("gave up on {} ({}); what it had not sent is read from the source",
                    options_.part.predecessor.name, why));
  }
  ring_.predecessor_lost();
}

// Connects and receives until the connection ends. Returns why the predecessor is lost, or "".
std::string RingClient::try_once() {
  const bool left = has_left();
  switch (watch_.tick(time_.tick())) {
    case PeerWatch::Next::silent:
      return why_.empty() ? "no answer" : why_;
    case PeerWatch::Next::sends_none:
      return kSendsNone;
    case PeerWatch::Next::wait:
    case PeerWatch::Next::retry:
      if (left) return kHasLeft;
      ring_.wait_for_end(timeouts().look);
      return "";
    case PeerWatch::Next::connect:
      break;
  }
  if (left) return kHasLeft;
  watch_.tries();
  bool connected = false;
  try {
    const std::unique_ptr<PeerLink> link = connect();
    connected = true;
    watch_.connected();
    time_.tick();
    talk(*link);
    return "";
  } catch (const PeerLost& broken) {
    why_ = broken.what();
    // One that listens and does not answer: the handshake has waited for it.
    if (!connected && dynamic_cast<const PeerSilent*>(&broken) != nullptr) {
      time_.tick();
      watch_.tick(timeouts().quiet);
    }
  } catch (const PeerError& error) {
    return error.what();
  }
  watch_.broken();
  return "";
}

void RingClient::subscribe(PeerLink& link) {
  ++generation_;
  idle_ = false;
  if (!chunks_)
    return link.send(fmt::format("lists {} {} {}", options_.number, generation_.load(),
                                 fmt::join(ring_.lists()->wanted(), " ")));
  const std::vector<std::byte> wanted = ring_.node()->wanted();
  link.send(fmt::format("want {} {} {}", options_.number, generation_.load(), wanted.size()), wanted);
  send_numbers(link, fmt::format("read {}", options_.number), ring_.look()->handed_over());
  wall_begin_ = nanoseconds(monotonic_ns());
  cpu_begin_ = thread_cpu_time();
}

void RingClient::talk(PeerLink& link) {
  subscribe(link);
  while (!done()) {
    if (chunks_) {
      send_changes(link);
      if (ring_.look()->all_begun()) {
        if (has_left()) throw PeerError(kHasLeft);
        ring_.wait_for_end(timeouts().look);
        time_.tick();
        watch_.heard();
        continue;
      }
    }
    if (const std::optional<std::string> line = link.receive(timeouts().look)) {
      take_line(link, *line, true);
      time_.tick();  // waiting for this node's disk is not the predecessor's silence
    } else {
      check_time();
    }
    if (broken_ == generation_) throw PeerLost("another connection to it broke");
  }
}

void RingClient::check_time() {
  if (has_left()) throw PeerError(kHasLeft);
  if (heard_.exchange(false)) heard(true);
  const PeerWatch::Next next = watch_.tick(time_.tick());
  if (next == PeerWatch::Next::sends_none) throw PeerError(kSendsNone);
  if (next != PeerWatch::Next::wait) throw PeerSilent("no answer");
}

void RingClient::heard(bool progress) {
  watch_.heard();
  if (progress) watch_.progressed();
}

// While the bytes after a line arrive.
void RingClient::looked(bool came, milliseconds silent, bool first, std::uint64_t generation) {
  if (ring_.finished()) throw PeerLost("this node has ended");
  if (!first) {
    // A chunk that nobody waits for any longer must not stay begun.
    if (lost_ || generation != generation_) throw PeerLost("another connection to it broke");
    if (came) heard_ = true;
    // The first connection may wait for this chunk alone.
    if (silent > timeouts().quiet) throw PeerSilent("no answer");
    return;
  }
  if (came) heard(false);
  check_time();
}

void RingClient::send_changes(PeerLink& link) {
  const std::vector<std::size_t> cancelled = ring_.look()->take_cancelled();
  send_numbers(link, fmt::format("cancel {}", options_.number), cancelled);
  if (!std::exchange(idle_, false)) return;
  const std::vector<std::size_t> handed_over = ring_.node()->hand_over();
  send_numbers(link, fmt::format("read {}", options_.number), handed_over);
}

void RingClient::take_line(PeerLink& link, const std::string& line, bool first) {
  const std::vector<std::string> words = words_of(line);
  if (words.size() < 2) throw PeerError("unexpected message");
  if (parse_number(words[1]) != options_.number) throw PeerError("unexpected message");
  if (first) heard(false);
  if (words[0] == "alive" && words.size() == 4) {
    if (!first) return;
    watch_.has(parse_number(words[2]));
    idle_ = parse_number(words[3]) != 0;
  } else if (words[0] == "gone" && words.size() == 2) {
    throw PeerError("it has no room for a copy of its own");
  } else if (!chunks_ && words[0] == "list" && words.size() == 6) {
    take_list(link, words, first);
  } else if (chunks_ && words[0] == "chunk" && words.size() == 7) {
    take_chunk(link, words, first);
  } else if (chunks_ && words[0] == "lacks" && words.size() == 3) {
    const std::size_t chunk = parse_number(words[2]);
    if (chunk >= ring_.look()->size()) throw PeerError("its chunk does not exist");
    ring_.node()->predecessor_lacks(chunk);
    note_bad(chunk);
  } else {
    throw PeerError("unexpected message");
  }
}

void RingClient::take_list(PeerLink& link, const std::vector<std::string>& words, bool first) {
  constexpr std::uint64_t kMaxListBytes = std::uint64_t{8} << 30U;
  const std::uint64_t total = parse_number(words[4]);
  const std::uint64_t bytes = parse_number(words[5]);
  if (bytes > ListRelay::kPiece || total > kMaxListBytes)
    throw PeerError("it sends a list that was not asked for");
  std::vector<std::byte> piece(bytes);
  link.receive_bytes(piece,
                     [&](bool came, milliseconds silent) { looked(came, silent, first, generation_); });
  if (!ring_.list_arrived(parse_number(words[2]), parse_number(words[3]), total, piece))
    throw PeerError("it sends a list that was not asked for");
  watch_.progressed();
}

void RingClient::take_chunk(PeerLink& link, const std::vector<std::string>& words, bool first) {
  const std::size_t chunk = parse_number(words[2]);
  const auto origin = static_cast<std::uint32_t>(parse_number(words[3]));
  const std::uint64_t bytes = parse_number(words[5]);
  if (chunk >= ring_.look()->size()) throw PeerError("its chunk does not exist");
  if (bytes != ring_.bytes(chunk)) throw PeerError("its chunk has another size");
  if (first) idle_ = parse_number(words[4]) != 0;
  LentChunk data = options_.context.resources.memory.chunks.take(bytes);
  if (first) time_.tick();  // a full disk of this node
  const std::uint64_t generation = generation_;
  const bool wanted = ring_.look()->begin_receiving(chunk);
  if (first) watch_.has(1);
  pack::Digest digest;
  try {
    link.receive_bytes(data.bytes(),
                       [&](bool came, milliseconds silent) { looked(came, silent, first, generation); });
    digest = pack::digest_of(data.bytes());
  } catch (...) {
    if (wanted) ring_.node()->not_received(chunk);
    // A connection made in between did not ask for it, because it was arriving.
    if (wanted && !first) broken_ = generation_.load();
    throw;
  }
  if (first) {
    watch_.progressed();
    add_lane_if_slow();
  }
  if (!wanted) return;
  if (pack::to_hex(digest) != words[6]) {
    options_.context.tally.note(fmt::format("a chunk arrived damaged from {} and is read from the source",
                                            options_.part.predecessor.name));
    note_bad(chunk);
    ring_.node()->arrived_damaged(chunk);
    return;
  }
  CheckedChunk checked{chunk, std::move(data), digest, origin};
  options_.count(checked);
  ring_.arrived(std::move(checked));
}

void RingClient::note_bad(std::size_t chunk) {
  const std::lock_guard lock(bad_mutex_);
  bad_.insert(chunk);
}

// One connection decrypts about 1 GB/s on one core. A thread that is busy nearly all the time is the limit.
void RingClient::add_lane_if_slow() {
  const nanoseconds wall = nanoseconds(monotonic_ns()) - wall_begin_;
  if (wall < kLaneRate || lanes_ >= options_.max_lanes) return;
  const nanoseconds cpu = thread_cpu_time() - cpu_begin_;
  if (4 * cpu > 3 * wall) {
    ++lanes_;
    lanes_.notify_all();
  }
  wall_begin_ += wall;
  cpu_begin_ += cpu;
}

void RingClient::get_chunks_too(std::size_t lane) {
  for (std::size_t now = lanes_; now <= lane && now < options_.max_lanes; now = lanes_) lanes_.wait(now);
  while (!done() && !lost_) {
    const std::uint64_t generation = generation_;
    if (generation == 0 || broken_ == generation) {
      ring_.wait_for_end(timeouts().look);
      continue;
    }
    std::unique_ptr<PeerLink> link;
    try {
      link = connect();
    } catch (const PeerError&) {
      return;  // the first connection gets all chunks
    }
    try {
      link->send(fmt::format("lane {} {}", options_.number, generation));
      while (!done() && generation == generation_) {
        if (const std::optional<std::string> line = link->receive(timeouts().look))
          take_line(*link, *line, false);
      }
    } catch (const PeerError&) {
      // Chunks that were on the way are lost: the first connection asks again.
      if (generation == generation_) broken_ = generation;
    }
  }
}

}  // namespace lockstep::transfer
