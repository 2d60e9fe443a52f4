#include "staging/transfer/exchange/ring.h"

#include <utility>

#include "staging/rendezvous/secure_connection.h"

namespace lockstep::transfer {

using std::chrono::milliseconds;
using Lock = std::unique_lock<std::mutex>;

Ring::Ring(std::uint32_t place, std::uint32_t nodes, const std::vector<ListRelay::From>& lists)
    : place_(place), nodes_(nodes), relay_(lists), texts_(lists.size()), lists_(lists.size()) {
}

// Any thread may have something to do.
void Ring::changed() {
  to_send_.notify_all();
  to_read_.notify_all();
  if (!ended()) return;
  to_store_.notify_all();
  end_.notify_all();
}

void Ring::list_made(std::size_t source, std::shared_ptr<const std::string> list) {
  const std::lock_guard lock(mutex_);
  relay_.made(source, list->size());
  lists_[source] = std::move(list);
  texts_[source] = {};
  changed();
}

bool Ring::list_arrived(std::size_t source, std::uint64_t offset, std::uint64_t total,
                        std::span<const std::byte> piece) {
  const std::lock_guard lock(mutex_);
  if (!relay_.arrived(source, offset, piece.size(), total)) return false;
  std::string& text = texts_[source];
  if (offset == 0) {
    text.clear();
    text.reserve(total);
  }
  text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  if (text.size() == total) lists_[source] = std::make_shared<const std::string>(std::exchange(text, {}));
  changed();
  return true;
}

std::shared_ptr<const std::string> Ring::list(std::size_t source) {
  const std::lock_guard lock(mutex_);
  return lists_[source];
}

void Ring::begin_chunks(std::uint32_t self, std::vector<std::uint32_t> readers,
                        const std::function<bool(std::size_t)>& missing, RingChunks chunks) {
  const std::lock_guard lock(mutex_);
  chunks_ = std::move(chunks);
  origins_.assign(readers.size(), self);
  node_.emplace(place_, nodes_, std::move(readers), missing);
  if (wanted_) node_->successor_wants(*wanted_);
  changed();
}

std::optional<std::size_t> Ring::take_read() {
  Lock lock(mutex_);
  std::optional<std::size_t> chunk;
  to_read_.wait(lock, [&] { return ended() || (chunk = node_->next_read()); });
  return chunk;
}

void Ring::predecessor_lost() {
  const std::lock_guard lock(mutex_);
  relay_.predecessor_lost();
  if (node_) node_->predecessor_lost();
  changed();
}

// The caller holds the mutex. Nobody takes chunks of a node that fails: their memory must not be kept from other threads.
void Ring::keep(CheckedChunk chunk) {
  if (stopped_) return;
  const std::size_t number = chunk.chunk;
  origins_[number] = chunk.origin;
  in_memory_[number] = std::move(chunk);
  node_->checked(number);
  to_send_.notify_all();
}

void Ring::checked(CheckedChunk chunk) {
  const std::lock_guard lock(mutex_);
  keep(std::move(chunk));
}

void Ring::arrived(CheckedChunk chunk) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  arrived_.push_back(chunk);
  keep(std::move(chunk));
  to_store_.notify_one();
}

std::optional<CheckedChunk> Ring::take_arrived() {
  Lock lock(mutex_);
  to_store_.wait(lock, [&] { return ended() || !arrived_.empty(); });
  if (arrived_.empty()) return {};
  std::optional<CheckedChunk> chunk(std::move(arrived_.front()));
  arrived_.pop_front();
  return chunk;
}

void Ring::stored(std::size_t chunk) {
  const std::lock_guard lock(mutex_);
  recent_.push_back(chunk);
  if (recent_.size() > chunks_.keep) {
    in_memory_.erase(recent_.front());
    recent_.pop_front();
  }
  node_->stored(chunk);
  if (ended()) changed();
}

bool Ring::finished() {
  const std::lock_guard lock(mutex_);
  return ended();
}

std::uint32_t Ring::origin(std::size_t chunk) const {
  const std::lock_guard lock(mutex_);
  return origins_[chunk];
}

void Ring::wait_for_end(milliseconds wait) {
  Lock lock(mutex_);
  end_.wait_for(lock, wait, [&] { return ended(); });
}

void Ring::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  in_memory_.clear();  // a thread may wait for their memory
  arrived_.clear();
  changed();
}

void Ring::successor_wants_lists(std::uint64_t generation, const std::vector<std::size_t>& sources) {
  const std::lock_guard lock(mutex_);
  if (generation < generation_) return;
  generation_ = generation;
  for (const std::size_t source : sources) relay_.successor_wants(source);
  changed();
}

void Ring::successor_wants_chunks(std::uint64_t generation, std::vector<std::byte> bits) {
  const std::lock_guard lock(mutex_);
  if (generation < generation_) return;
  generation_ = generation;
  wanted_ = std::move(bits);
  if (node_) node_->successor_wants(*wanted_);
  changed();
}

void Ring::successor_reads(const std::vector<std::size_t>& chunks, bool reads) {
  const std::lock_guard lock(mutex_);
  if (!node_) return;  // it asks again when it connects
  for (const std::size_t chunk : chunks)
    reads ? node_->successor_reads(chunk) : node_->successor_hands_over(chunk);
  changed();
}

bool Ring::can_send(std::uint64_t generation) const {
  return closed_ || left_ || generation != generation_ || relay_.can_send() ||
         (node_ && !stopped_ && node_->to_send() > 0);
}

Ring::Outgoing Ring::next_send(std::uint64_t generation, milliseconds wait, ChunkBuffers& buffers) {
  Lock lock(mutex_);
  Outgoing out;
  if (!to_send_.wait_for(lock, wait, [&] { return can_send(generation); })) return out;
  if (closed_ || left_ || generation != generation_) {
    out.kind = Outgoing::Kind::stale;
    return out;
  }
  if (const auto piece = relay_.next_send()) {
    out.kind = Outgoing::Kind::list;
    out.piece = *piece;
    const std::shared_ptr<const std::string>& whole = lists_[piece->source];
    out.text = (whole ? *whole : texts_[piece->source]).substr(piece->offset, piece->bytes);
    return out;
  }
  if (!node_ || stopped_ || node_->to_send() == 0) return out;
  if (wanted_->size() != (node_->size() + 7) / 8) throw PeerError("it has another list of files");
  out.idle = node_->idle();
  out.kind = Outgoing::Kind::chunk;
  out.chunk.chunk = *node_->next_send();
  out.chunk.origin = origins_[out.chunk.chunk];
  if (const auto found = in_memory_.find(out.chunk.chunk); found != in_memory_.end()) {
    out.chunk = found->second;
  } else {
    read_for_successor(lock, out, buffers);
  }
  return out;
}

// Without the mutex: the other threads must not wait for this disk.
void Ring::read_for_successor(Lock& lock, Outgoing& out, ChunkBuffers& buffers) {
  ++users_;
  lock.unlock();
  try {
    CheckedChunk& chunk = out.chunk;
    chunk.digest = chunks_.digest(chunk.chunk);
    LentChunk buffer = buffers.take(chunks_.bytes(chunk.chunk));
    if (chunks_.read(chunk.chunk, buffer.bytes())) chunk.data = std::move(buffer);
  } catch (const std::exception&) {
    // The successor reads it from the source, and names this node.
  }
  if (!out.chunk.data) out.kind = Outgoing::Kind::lacks;
  lock.lock();
  --users_;
  unused_.notify_all();
}

Ring::Progress Ring::progress() {
  const std::lock_guard lock(mutex_);
  return node_ ? Progress{node_->to_send(), node_->idle()} : Progress{};
}

void Ring::close() {
  Lock lock(mutex_);
  closed_ = true;
  in_memory_.clear();
  to_send_.notify_all();
  unused_.wait(lock, [&] { return users_ == 0; });
}

void Ring::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  to_send_.notify_all();
}

bool Ring::left() {
  const std::lock_guard lock(mutex_);
  return left_;
}

}  // namespace lockstep::transfer
