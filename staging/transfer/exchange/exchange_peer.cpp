#include "staging/transfer/exchange/exchange_peer.h"

#include <algorithm>
#include <chrono>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kAsked = 3;  // chunks on their way at once
constexpr int kMaxDamaged = 3;

}  // namespace

void ExchangePeer::run() {
  for (;;) {
    try {
      const std::unique_ptr<Link> link = options_.connect();
      talk(*link);
      return;
    } catch (const PeerLost& lost) {
      if (reconnected_) {
        give_up(lost.what());
        return;
      }
    } catch (const PeerError& error) {
      give_up(error.what());
      return;
    }
    // A connection may break where the other side is well. What it ceded last may be lost: it says so when it
    // is asked for it.
    reconnected_ = true;
    asked_to_cede_ = false;
    for (const std::size_t chunk : asked_) work_.put_back(chunk, options_.member);
    asked_.clear();
  }
}

void ExchangePeer::give_up(const std::string& why) {
  options_.note(
      fmt::format("{} gives nothing any more ({}); its share is read from the source", options_.name, why));
  dead_ = true;
  work_.give_up(options_.member);
  for (const std::size_t chunk : asked_) work_.put_back(chunk, options_.member);
}

void ExchangePeer::talk(Link& link) {
  auto heard = std::chrono::steady_clock::now();
  while (!work_.finished()) {
    ask(link);
    if (asked_.empty() && !asked_to_cede_) {
      work_.wait_for_change(50);
      heard = std::chrono::steady_clock::now();
      continue;
    }
    const std::optional<std::string> line = link.receive(milliseconds(50));
    const auto now = std::chrono::steady_clock::now();
    if (line) {
      take_line(link, *line);
      heard = std::chrono::steady_clock::now();
    } else if (now - heard > options_.patience.silence) {
      throw PeerError("it does not answer");
    }
  }
}

void ExchangePeer::ask(Link& link) {
  while (asked_.size() < kAsked) {
    const std::optional<std::size_t> chunk = work_.take(options_.member);
    if (!chunk) break;
    asked_.push_back(*chunk);
    link.send(fmt::format("get {} {}", options_.topic, *chunk));
  }
  if (cede_.exchange(false)) {
    asked_to_cede_ = true;
    link.send(fmt::format("cede {} {}", options_.topic, options_.own_id));
  }
}

// A chunk that was asked for is answered; nothing else may come.
std::size_t ExchangePeer::answered(const std::string& word) {
  const std::size_t chunk = number_of(word);
  const auto found = std::find(asked_.begin(), asked_.end(), chunk);
  if (found == asked_.end()) throw PeerError("it answers what it was not asked");
  asked_.erase(found);
  return chunk;
}

void ExchangePeer::take_line(Link& link, const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  if (words.empty()) throw PeerError("it makes no sense");
  if (words[0] == "alive") return;
  if (words.size() < 2 || number_of(words[1]) != options_.topic) throw PeerError("it makes no sense");
  if (words[0] == "chunk" && words.size() == 5) return take_chunk(link, words);
  if (words[0] == "moved" && words.size() == 4) {
    // All of it is understood before the chunk is no longer asked for: else it would be lost.
    const std::optional<std::size_t> member = options_.member_of(number_of(words[3]));
    const std::size_t chunk = answered(words[2]);
    work_.moved(chunk, member.value_or(work_.self()));
  } else if (words[0] == "gone" && words.size() == 3) {
    work_.put_back(answered(words[2]), work_.self());
  } else if (words[0] == "ceded") {
    asked_to_cede_ = false;
    for (std::size_t i = 2; i < words.size(); ++i) {
      const std::uint64_t chunk = number_of(words[i]);
      if (chunk >= copy_.plan().size()) throw PeerError("it cedes what there is not");
      work_.claim(chunk);
    }
  } else {
    throw PeerError("it makes no sense");
  }
}

void ExchangePeer::take_chunk(Link& link, const std::vector<std::string>& words) {
  const std::uint64_t bytes = number_of(words[3]);
  const std::size_t chunk = answered(words[2]);
  if (bytes != copy_.plan().bytes(chunk)) {
    asked_.push_back(chunk);
    throw PeerError("it has another source");
  }
  ChunkBuffers::Buffer data;
  try {
    data = copy_.buffers().take(copy_.plan().bytes(chunk));
    link.receive_bytes(data.bytes());
  } catch (...) {
    asked_.push_back(chunk);
    throw;
  }
  const pack::Digest digest = pack::digest_of(data.bytes());
  if (pack::to_hex(digest) != words[4]) {
    work_.put_back(chunk, work_.self());
    options_.note(
        fmt::format("chunk {} came damaged from {}; it is read from the source", chunk, options_.name));
    if (++damaged_ == kMaxDamaged) throw PeerError("what it sends is damaged");
    return;
  }
  if (!work_.arrived(chunk)) return;
  options_.got(chunk, data.bytes().size());
  copy_.take(chunk, std::move(data), digest, work_);
}

}  // namespace lockstep::transfer
