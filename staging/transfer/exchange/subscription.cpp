#include "staging/transfer/exchange/subscription.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;

constexpr int kMaxDamaged = 3;
constexpr int kMaxUnreachable = 3;
constexpr int kRetryMs = 100;
constexpr milliseconds kAskAgain{500};       // the rendezvous
constexpr std::size_t kNumbersInLine = 256;  // a line has 8,192 bytes

void send_numbers(PeerLink& link, const std::string& line, const std::vector<std::size_t>& chunks) {
  for (std::size_t at = 0; at < chunks.size(); at += kNumbersInLine) {
    const auto part = std::span(chunks).subspan(at, std::min(kNumbersInLine, chunks.size() - at));
    link.send(fmt::format("{} {}", line, fmt::join(part, " ")));
  }
}

}  // namespace

void Subscription::get_lists() {
  follow_predecessors();
  make_lists();
}

void Subscription::get_chunks(ChainSchedule& schedule) {
  schedule_ = &schedule;
  apply_losses();
  follow_predecessors();
  if (!done()) schedule.read_all(0, schedule.size());
}

void Subscription::follow_predecessors() {
  while (!done() && options_.predecessor && unreachable_ < kMaxUnreachable) {
    const ChainNode node = *options_.predecessor;
    const std::optional<Lost> lost = receive_from(node.node);
    if (!lost) return;
    link_.reset();
    unreachable_ += lost->running ? 1 : 0;
    pass_over(node, *lost);
  }
}

void Subscription::pass_over(ChainNode node, const Lost& lost) {
  if (!lost.ended) {
    options_.note(fmt::format("gave up on {} ({}); its share is read from the source",
                              options_.name(node.node), lost.why));
  }
  NextPredecessor next = options_.pass_over(node.node);
  options_.predecessor = next.predecessor;
  lost_places_.push_back(node.place);
  without_holder_ = std::move(next.without_holder);
  if (next.lists) make_lists();
  if (schedule_ != nullptr) apply_losses();
}

void Subscription::apply_losses() {
  for (const std::uint32_t place : std::exchange(lost_places_, {})) schedule_->replace(place);
  // The nodes before this one may still pass on what the last holder sent.
  for (const std::size_t source : std::exchange(without_holder_, {})) {
    const auto [begin, end] = options_.chunks_of(source);
    schedule_->read_all(begin, end);
  }
}

void Subscription::make_lists() {
  for (const std::size_t source : std::exchange(options_.lists, {})) options_.make_list(source);
}

std::optional<Subscription::Lost> Subscription::receive_from(Node node) {
  using Clock = std::chrono::steady_clock;
  milliseconds without_data{0};
  for (;;) {
    std::string why;
    bool silent = false;
    received_ = false;
    const auto begin = Clock::now();
    try {
      if (!link_) link_ = options_.connect(node);
      talk(*link_, node);
      return {};
    } catch (const PeerLost& broken) {
      why = broken.what();
      silent = dynamic_cast<const PeerSilent*>(&broken) != nullptr;
    } catch (const PeerError& error) {
      return Lost{.why = error.what(), .running = true};
    }
    link_.reset();
    if (done()) return {};
    if (options_.is_lost(node)) return Lost{.why = why, .ended = !silent};
    if (received_) without_data = milliseconds(0);
    if (schedule_ != nullptr) {
      schedule_->wait_for_end(kRetryMs);
    } else {
      std::this_thread::sleep_for(milliseconds(kRetryMs));
    }
    // A long time may mean that this process was stopped: one try alone does not suffice.
    const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    without_data += std::min(passed, options_.timeouts.silence);
    if (without_data > options_.timeouts.silence) return Lost{.why = why, .running = true};
  }
}

void Subscription::talk(PeerLink& link, Node node) {
  idle_ = false;
  damaged_chunks_.clear();
  if (schedule_ == nullptr) {
    send_numbers(link, fmt::format("lists {}", options_.topic), options_.lists);
  } else {
    const std::vector<std::byte> wanted = schedule_->subscribe(options_.lane);
    link.send(fmt::format("subscribe {} {}", options_.topic, wanted.size()), wanted);
  }
  RunningTime time;
  milliseconds silent{0};
  milliseconds ask_at = options_.timeouts.silence;
  while (!done()) {
    if (schedule_ != nullptr) {
      send_changes(link);
      if (schedule_->all_begun()) {
        schedule_->wait_for_end(static_cast<int>(options_.timeouts.look.count()));
        time.tick();
        continue;
      }
    }
    const std::optional<std::string> line = link.receive(options_.timeouts.look);
    if (line) {
      take_line(link, *line);
      time.tick();  // waiting for this node's disk is not the predecessor's silence
      silent = milliseconds(0);
      ask_at = options_.timeouts.silence;
      continue;
    }
    silent += time.tick();
    if (silent < ask_at) continue;
    ask_at += kAskAgain;
    if (options_.is_lost(node)) throw PeerSilent("no answer");
    if (silent > options_.timeouts.chunk) throw PeerError("no answer");
  }
}

void Subscription::send_changes(PeerLink& link) {
  send_numbers(link, fmt::format("cancel {}", options_.topic), schedule_->take_cancelled(options_.lane));
  send_numbers(link, fmt::format("again {}", options_.topic), std::exchange(damaged_chunks_, {}));
  if (!idle_) return;
  const std::vector<std::size_t> handed_over =
      schedule_->hand_over(options_.lane, options_.predecessor->place);
  if (handed_over.empty()) return;
  idle_ = false;
  send_numbers(link, fmt::format("read {}", options_.topic), handed_over);
}

void Subscription::take_line(PeerLink& link, const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  if (words == std::vector<std::string>{"alive"}) return;
  if (words.size() < 2 || parse_number(words[1]) != options_.topic) throw PeerError("unexpected message");
  if (schedule_ == nullptr) {
    if (words[0] != "list" || words.size() != 4) throw PeerError("unexpected message");
    return take_list(link, words);
  }
  if (words[0] == "chunk" && words.size() == 6) {
    take_chunk(link, words);
  } else if (words[0] == "idle" && words.size() == 2) {
    idle_ = true;
  } else if (words[0] == "lacks" && words.size() == 3) {
    const std::size_t chunk = parse_number(words[2]);
    if (chunk >= schedule_->size()) throw PeerError("its chunk does not exist");
    schedule_->read_instead(chunk);
    options_.predecessor_lacks();
  } else {
    throw PeerError("unexpected message");
  }
}

void Subscription::take_list(PeerLink& link, const std::vector<std::string>& words) {
  constexpr std::size_t kMaxListBytes = std::size_t{8} << 30U;
  const std::size_t source = parse_number(words[2]);
  const std::size_t bytes = parse_number(words[3]);
  if (options_.lists.empty() || source != options_.lists.front() || bytes > kMaxListBytes)
    throw PeerError("it sends a list that was not asked for");
  std::string list(bytes, '\0');
  link.receive_bytes(std::as_writable_bytes(std::span(list)));
  received_ = true;
  options_.take_list(source, std::move(list));
  options_.lists.erase(options_.lists.begin());
}

void Subscription::take_chunk(PeerLink& link, const std::vector<std::string>& words) {
  const std::size_t chunk = parse_number(words[2]);
  const std::uint64_t bytes = parse_number(words[4]);
  const auto origin = static_cast<Node>(parse_number(words[3]));
  if (chunk >= schedule_->size()) throw PeerError("its chunk does not exist");
  if (bytes != options_.bytes(chunk)) throw PeerError("its chunk has another size");
  ChunkBuffers::Buffer data = options_.buffer(static_cast<std::uint32_t>(bytes));
  const bool wanted = schedule_->begin_receiving(chunk);
  pack::Digest digest;
  try {
    link.receive_bytes(data.bytes());
    digest = pack::digest_of(data.bytes());
  } catch (...) {
    if (wanted) schedule_->not_received(chunk);
    throw;
  }
  if (!wanted) return;
  if (pack::to_hex(digest) != words[5]) {
    schedule_->not_received(chunk);
    damaged_chunks_.push_back(chunk);
    options_.note("a chunk arrived damaged and was sent again");
    if (++damaged_ == kMaxDamaged) throw PeerError("it sends damaged chunks");
    return;
  }
  received_ = true;
  options_.store({chunk, std::move(data), digest, origin});
}

}  // namespace lockstep::transfer
