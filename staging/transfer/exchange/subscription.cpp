#include "staging/transfer/exchange/subscription.h"

#include <algorithm>
#include <chrono>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;

constexpr int kMaxDamaged = 3;
constexpr int kMaxUnreachable = 3;
constexpr int kRetryMs = 100;
constexpr milliseconds kSayChanges{50};      // to the predecessor
constexpr milliseconds kAskAgain{500};       // the rendezvous
constexpr std::size_t kNumbersInLine = 256;  // a line has 8,192 bytes

void send_numbers(PeerLink& link, const std::string& line, const std::vector<std::size_t>& chunks) {
  for (std::size_t at = 0; at < chunks.size(); at += kNumbersInLine) {
    const auto part = std::span(chunks).subspan(at, std::min(kNumbersInLine, chunks.size() - at));
    link.send(fmt::format("{} {}", line, fmt::join(part, " ")));
  }
}

}  // namespace

void Subscription::run() {
  int unreachable = 0;
  for (const Node node : options_.predecessors) {
    if (schedule_.finished()) return;
    const std::optional<Lost> lost = receive_from(node);
    if (!lost) return;
    unreachable += lost->running ? 1 : 0;
    pass_over(node, *lost);
    if (unreachable == kMaxUnreachable) break;
  }
  schedule_.read_all();
}

void Subscription::pass_over(Node node, const Lost& lost) {
  if (!lost.ended) {
    options_.note(
        fmt::format("gave up on {} ({}); its share is read from the source", options_.name(node), lost.why));
  }
  schedule_.replace(node);
  const bool held = !options_.holders.empty();
  std::erase(options_.holders, node);
  for (const Node other : options_.lost(options_.holders, node)) std::erase(options_.holders, other);
  // The nodes before this one may still pass on what the last holder sent.
  if (held && options_.holders.empty()) schedule_.read_all();
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
      const std::unique_ptr<PeerLink> link = options_.connect(node);
      talk(*link, node);
      return {};
    } catch (const PeerLost& broken) {
      why = broken.what();
      silent = dynamic_cast<const PeerSilent*>(&broken) != nullptr;
    } catch (const PeerError& error) {
      return Lost{.why = error.what(), .running = true};
    }
    if (schedule_.finished()) return {};
    if (is_lost(node)) return Lost{.why = why, .ended = !silent};
    if (received_) without_data = milliseconds(0);
    schedule_.wait_for_end(kRetryMs);
    // A long time may mean that this process was stopped: one try alone does not suffice.
    const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    without_data += std::min(passed, options_.timeouts.silence);
    if (without_data > options_.timeouts.silence) return Lost{.why = why, .running = true};
  }
}

void Subscription::talk(PeerLink& link, Node node) {
  idle_ = false;
  again_.clear();
  const std::vector<std::byte> wanted = schedule_.subscribe();
  link.send(fmt::format("subscribe {} {}", options_.topic, wanted.size()), wanted);
  RunningTime time;
  milliseconds silent{0};
  milliseconds ask_at = options_.timeouts.silence;
  while (!schedule_.finished()) {
    send_changes(link, node);
    const std::optional<std::string> line = link.receive(kSayChanges);
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
    if (is_lost(node)) throw PeerSilent("no answer");
    if (silent > options_.timeouts.chunk) throw PeerError("no answer");
  }
}

void Subscription::send_changes(PeerLink& link, Node node) {
  send_numbers(link, fmt::format("cancel {}", options_.topic), schedule_.take_cancelled());
  send_numbers(link, fmt::format("again {}", options_.topic), std::exchange(again_, {}));
  if (!idle_) return;
  const std::vector<std::size_t> handed_over = schedule_.hand_over(node);
  if (handed_over.empty()) return;
  idle_ = false;
  send_numbers(link, fmt::format("read {}", options_.topic), handed_over);
}

void Subscription::take_line(PeerLink& link, const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  if (words == std::vector<std::string>{"alive"}) return;
  if (words.size() < 2 || parse_number(words[1]) != options_.topic) throw PeerError("unexpected message");
  if (words[0] == "chunk" && words.size() == 6) {
    take_chunk(link, words);
  } else if (words[0] == "idle" && words.size() == 2) {
    idle_ = true;
  } else if (words[0] == "lacks" && words.size() == 3) {
    schedule_.read_instead(parse_number(words[2]));
  } else {
    throw PeerError("unexpected message");
  }
}

void Subscription::take_chunk(PeerLink& link, const std::vector<std::string>& words) {
  const std::size_t chunk = parse_number(words[2]);
  const std::uint64_t bytes = parse_number(words[4]);
  const auto origin = static_cast<Node>(parse_number(words[3]));
  if (chunk >= schedule_.size()) throw PeerError("its chunk does not exist");
  if (bytes != options_.bytes(chunk)) throw PeerError("its chunk has another size");
  ChunkBuffers::Buffer data = options_.buffer(static_cast<std::uint32_t>(bytes));
  const bool wanted = schedule_.begin_receiving(chunk);
  pack::Digest digest;
  try {
    link.receive_bytes(data.bytes());
    digest = pack::digest_of(data.bytes());
  } catch (...) {
    if (wanted) schedule_.not_received(chunk);
    throw;
  }
  if (!wanted) return;
  if (pack::to_hex(digest) != words[5]) {
    schedule_.not_received(chunk);
    again_.push_back(chunk);
    options_.note("a chunk arrived damaged and was sent again");
    if (++damaged_ == kMaxDamaged) throw PeerError("it sends damaged chunks");
    return;
  }
  received_ = true;
  options_.store({chunk, std::move(data), digest, origin});
}

}  // namespace lockstep::transfer
