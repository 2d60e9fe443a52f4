#include "staging/transfer/put_context.h"

#include <utility>

#include "common/clock.h"

namespace lockstep::transfer {

PutTally::PutTally(std::string source) : begin_ns_(monotonic_ns()) {
  result_.source = std::move(source);
}

void PutTally::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (result_.note.find(text) != std::string::npos) return;
  result_.note += (result_.note.empty() ? "" : "; ") + text;
}

void PutTally::count_from_source(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  result_.from_source += bytes;
}

void PutTally::count_from_peer(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  result_.from_peers += bytes;
}

void PutTally::count_resumed(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  result_.resumed += bytes;
}

PutResult PutTally::result() const {
  const std::lock_guard lock(mutex_);
  PutResult result = result_;
  result.seconds = seconds_between(begin_ns_, monotonic_ns());
  return result;
}

}  // namespace lockstep::transfer
