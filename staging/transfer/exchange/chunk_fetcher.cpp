#include "staging/transfer/exchange/chunk_fetcher.h"

#include <algorithm>
#include <chrono>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxAsked = 3;  // chunks on their way at once
constexpr int kMaxDamaged = 3;

}  // namespace

void ChunkFetcher::run() {
  bool reconnected = false;
  for (;;) {
    try {
      const std::unique_ptr<PeerLink> link = options_.connect();
      return talk(*link);
    } catch (const PeerLost& lost) {
      if (reconnected) return give_up(lost.what());
    } catch (const PeerError& error) {
      return give_up(error.what());
    }
    // A connection can break although the other node works.
    reconnected = true;
    said_idle_ = false;
    put_back_asked();
  }
}

void ChunkFetcher::give_up(const std::string& why) {
  options_.note(fmt::format("gave up on {} ({}); its share is read from the source", options_.name, why));
  schedule_.give_up(options_.node);
  put_back_asked();
}

void ChunkFetcher::put_back_asked() {
  for (const std::size_t chunk : asked_) schedule_.put_back(chunk, options_.node);
  asked_.clear();
}

void ChunkFetcher::talk(PeerLink& link) {
  auto heard = std::chrono::steady_clock::now();
  while (!schedule_.finished()) {
    ask(link);
    if (asked_.empty()) {
      schedule_.wait_for_change(50);
      heard = std::chrono::steady_clock::now();
      continue;
    }
    const std::optional<std::string> line = link.receive(milliseconds(50));
    const auto now = std::chrono::steady_clock::now();
    if (line) {
      take_line(link, *line);
      heard = std::chrono::steady_clock::now();
    } else if (now - heard > options_.silence) {
      throw PeerError("no answer");
    }
  }
}

void ChunkFetcher::ask(PeerLink& link) {
  if (!said_idle_ && schedule_.idle()) {
    said_idle_ = true;
    link.send(fmt::format("idle {}", options_.topic));
  }
  while (asked_.size() < kMaxAsked) {
    const std::optional<std::size_t> chunk = schedule_.take(options_.node);
    if (!chunk) break;
    asked_.push_back(*chunk);
    link.send(fmt::format("get {} {}", options_.topic, *chunk));
  }
}

std::size_t ChunkFetcher::answered(const std::string& word) {
  const std::size_t chunk = parse_number(word);
  const auto found = std::find(asked_.begin(), asked_.end(), chunk);
  if (found == asked_.end()) throw PeerError("it answers for a chunk that was not asked for");
  asked_.erase(found);
  return chunk;
}

void ChunkFetcher::take_line(PeerLink& link, const std::string& line) {
  const std::vector<std::string> words = words_of(line);
  if (words == std::vector<std::string>{"alive"}) return;
  if (words.size() < 3 || parse_number(words[1]) != options_.topic) throw PeerError("unexpected message");
  if (words[0] == "chunk" && words.size() == 5) {
    take_chunk(link, words);
  } else if (words[0] == "elsewhere" && words.size() == 3) {
    schedule_.refused(answered(words[2]), options_.node);
  } else {
    throw PeerError("unexpected message");
  }
}

void ChunkFetcher::take_chunk(PeerLink& link, const std::vector<std::string>& words) {
  const std::uint64_t bytes = parse_number(words[3]);
  const std::size_t chunk = answered(words[2]);
  ChunkBuffers::Buffer data;
  try {
    if (bytes != copy_.plan().bytes(chunk)) throw PeerError("its chunk has another size");
    data = copy_.buffers().take(bytes);
    link.receive_bytes(data.bytes());
  } catch (...) {
    asked_.push_back(chunk);
    throw;
  }
  const pack::Digest digest = pack::digest_of(data.bytes());
  if (pack::to_hex(digest) != words[4]) {
    schedule_.refused(chunk, options_.node);
    options_.note(fmt::format("chunk {} from {} arrived damaged and is fetched again", chunk, options_.name));
    if (++damaged_ == kMaxDamaged) throw PeerError("it sends damaged chunks");
    return;
  }
  options_.received(bytes);
  copy_.take(chunk, std::move(data), digest);
  schedule_.done();
}

}  // namespace lockstep::transfer
