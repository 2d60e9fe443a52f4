#include "staging/transfer/source_put.h"

#include <utility>

namespace lockstep::transfer {

SourceState SourcePut::state(bool lock) {
  if (is_here()) return SourceState::has;
  if (!std::holds_alternative<Unknown>(state_)) return SourceState::needs;
  const SourceState state = set(lookup_.find_or_lock(false));
  if (lock || state != SourceState::needs) return state;
  state_ = Unknown{};
  return SourceState::busy;
}

void SourcePut::copy_anyway(const std::string& step) {
  state_ = lookup_.lock_own_copy(step);
  copies_anyway_ = true;
}

// No lock of one source is held while this process waits for another one: two steps may wait in different orders.
void SourcePut::wait() {
  if (set(lookup_.find_or_lock(true)) != SourceState::has) state_ = Unknown{};
}

SourceState SourcePut::set(SourceLookup::Result result) {
  if (auto* const found = std::get_if<FoundCopy>(&result)) {
    state_ = Held{std::move(*found)};
    return SourceState::has;
  }
  if (auto* const lock = std::get_if<CopyLock>(&result)) {
    state_ = std::move(*lock);
    return SourceState::needs;
  }
  return SourceState::busy;
}

std::shared_ptr<const std::string> SourcePut::keep_list(std::string list) {
  return list_ = std::make_shared<const std::string>(std::move(list));
}

std::shared_ptr<const std::string> SourcePut::own_list() {
  const Manifest& manifest = lookup_.manifest();
  const auto* const held = std::get_if<Held>(&state_);
  if (list_ || held == nullptr || (!manifest.packed() && manifest.files.empty())) return list_;
  return keep_list(list_text(manifest, held->copy.files));
}

std::shared_ptr<const std::string> SourcePut::make_list() {
  if (const auto* const held = std::get_if<Held>(&state_)) {
    Manifest manifest = lookup_.manifest();
    if (!manifest.packed() && manifest.files.empty()) rescan_source(context_, manifest);
    return keep_list(list_text(manifest, held->copy.files));
  }
  auto& begun =
      state_.emplace<Begun>(begin_copy(context_, lookup_.manifest(), std::get<Locked>(std::move(state_))));
  return keep_list(list_text(begun.manifest, begun.incoming->files()));
}

void SourcePut::prepare(bool check_source) {
  if (auto* const held = std::get_if<Held>(&state_)) {
    if (held->chunks) return;
    const std::filesystem::path& files = held->copy.files;
    held->chunks = std::make_unique<ObjectChunks>(
        context_.system, files, lookup_.files_of(held->copy),
        ChunkJournal::read(context_.system, files.parent_path() / kJournalName),
        context_.options.sizes.chunk_bytes);
    return;
  }
  if (auto* const lock = std::get_if<Locked>(&state_)) {
    state_ = begin_copy_with_list(context_, lookup_.manifest(), std::move(*lock), *list_);
    context_.tally.count(&PutResult::from_peers, list_->size());
  }
  if (auto* const begun = std::get_if<Begun>(&state_))
    state_ = std::make_unique<NewCopy>(context_, std::move(*begun), check_source);
}

pack::Digest SourcePut::digest(std::size_t chunk) const {
  return is_served() ? held().chunks->digest(chunk) : copy().store().digest(chunk);
}

bool SourcePut::read(std::size_t chunk, std::span<std::byte> into) {
  return is_served() ? held().chunks->read(chunk, into) : copy().store().read(chunk, into);
}

void SourcePut::finish(std::uint32_t self, const std::function<std::uint32_t(std::size_t chunk)>& origin,
                       const std::function<std::string(std::uint32_t node)>& name) {
  copy().finish([&](std::size_t chunk) {
    const std::uint32_t from = origin(chunk);
    if (from == self) return;
    context_.tally.note(
        fmt::format("{} sent other bytes than the source has; they are read from the source", name(from)));
  });
}

void SourcePut::suspect() {
  suspect_ = true;
  // The chunks were right in memory when they were stored.
  for (std::size_t chunk = 0; needed() && chunk < plan().size(); ++chunk) {
    if (copy().store().read_digest(chunk) == copy().store().digest(chunk)) continue;
    fail("{}: the disk of the cache returned other bytes than were written ({}): check the disk",
         context_.source.name, context_.store.folder().string());
  }
}

std::string SourcePut::content() const {
  if (copies()) return copy().content();
  const auto* const held = std::get_if<Held>(&state_);
  return held == nullptr ? "" : lookup_.content_of(held->copy);
}

bool SourcePut::remove_if_damaged() {
  if (taken_ || !is_served() || !std::exchange(suspect_, false) ||
      !lookup_.remove_if_damaged(std::get<Held>(state_).copy))
    return false;
  state_ = Unknown{};
  list_.reset();
  return true;
}

FoundCopy SourcePut::take_result() {
  const bool copied = needed();
  taken_ = true;
  if (copied) return copy().publish();
  if (auto* const held = std::get_if<Held>(&state_)) {
    FoundCopy copy = std::move(held->copy);
    held->copy.files = copy.files;  // another ring may serve it
    return copy;
  }
  return find_or_copy(context_, lookup_);
}

}  // namespace lockstep::transfer
