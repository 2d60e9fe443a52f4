#include "staging/transfer/source_put.h"

namespace lockstep::transfer {

SourceState SourcePut::find() {
  return set(lookup_.find_or_lock(false));
}

void SourcePut::wait() {
  set(lookup_.find_or_lock(true));
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

std::shared_ptr<const std::string> SourcePut::take_list(std::string list) {
  if (auto* const lock = std::get_if<Locked>(&state_)) {
    state_ = begin_copy_with_list(context_, lookup_.manifest(), std::move(*lock), list);
    context_.tally.count_from_peer(list.size());
  }
  return keep_list(std::move(list));
}

void SourcePut::prepare(bool check_source) {
  if (auto* const held = std::get_if<Held>(&state_)) {
    if (held->chunks) return;
    held->chunks = std::make_unique<ObjectChunks>(held->copy.files, lookup_.files_of(held->copy),
                                                  context_.options.sizes.chunk_bytes);
  } else if (auto* const begun = std::get_if<Begun>(&state_)) {
    state_ = std::make_unique<NewCopy>(context_, std::move(*begun), check_source);
  }
}

bool SourcePut::read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
  if (is_served()) return held().chunks->read(chunk, into, digest);
  digest = copy().store().digest(chunk);
  return copy().store().read(chunk, into);
}

LentChunk SourcePut::lend(std::size_t chunk, pack::Digest& digest) {
  if (is_served()) return nullptr;
  digest = copy().store().digest(chunk);
  return context_.resources.recent.lend({&context_, chunk});
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

std::string SourcePut::content() const {
  if (copies()) return copy().content();
  const auto* const held = std::get_if<Held>(&state_);
  return held == nullptr ? "" : lookup_.content_of(held->copy);
}

void SourcePut::remove_if_damaged() {
  if (!lookup_.remove_if_damaged(std::get<Held>(state_).copy)) return;
  state_ = Unknown{};
  list_.reset();
}

FoundCopy SourcePut::take_result() {
  const bool copied = needed();
  taken_ = true;
  if (copied) return copy().publish();
  if (auto* const held = std::get_if<Held>(&state_)) return std::move(held->copy);
  return find_or_copy(context_, lookup_);
}

}  // namespace lockstep::transfer
