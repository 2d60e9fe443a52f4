#include "staging/transfer/source_put.h"

namespace lockstep::transfer {

SourceState SourcePut::find() {
  SourceLookup::Result result = lookup_.find_or_lock(false);
  if (auto* const found = std::get_if<FoundCopy>(&result)) {
    found_ = std::move(*found);
    return SourceState::has;
  }
  if (auto* const lock = std::get_if<CopyLock>(&result)) {
    lock_ = std::move(*lock);
    return SourceState::needs;
  }
  return SourceState::busy;
}

void SourcePut::wait() {
  SourceLookup::Result result = lookup_.find_or_lock(true);
  if (auto* const found = std::get_if<FoundCopy>(&result)) {
    found_ = std::move(*found);
  } else {
    lock_ = std::get<CopyLock>(std::move(result));
  }
}

std::shared_ptr<const std::string> SourcePut::keep_list(std::string list) {
  return list_ = std::make_shared<const std::string>(std::move(list));
}

std::shared_ptr<const std::string> SourcePut::own_list() {
  const Manifest& manifest = lookup_.manifest();
  if (list_ || !found_ || (!manifest.packed() && manifest.files.empty())) return list_;
  return keep_list(list_text(manifest, found_->files));
}

std::shared_ptr<const std::string> SourcePut::make_list() {
  if (found_) {
    Manifest manifest = lookup_.manifest();
    if (!manifest.packed() && manifest.files.empty()) rescan_source(context_, manifest);
    return keep_list(list_text(manifest, found_->files));
  }
  begun_ = begin_copy(context_, lookup_.manifest(), std::move(*lock_));
  return keep_list(list_text(begun_->manifest, begun_->incoming->files()));
}

std::shared_ptr<const std::string> SourcePut::take_list(std::string list) {
  if (!found_) {
    begun_ = begin_copy_with_list(context_, lookup_.manifest(), std::move(*lock_), list);
    context_.tally.count_from_peer(list.size());
  }
  return keep_list(std::move(list));
}

void SourcePut::prepare(bool check_source) {
  if (copy_ || object_) return;
  if (found_) {
    object_ = std::make_unique<ObjectChunks>(found_->files, lookup_.files_of(*found_),
                                             context_.options.chunk_bytes);
  } else {
    copy_ = std::make_unique<NewCopy>(context_, std::move(*begun_), check_source);
  }
}

bool SourcePut::read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
  if (object_) return object_->read(chunk, into, digest);
  digest = copy().store().digest(chunk);
  return copy().store().read(chunk, into);
}

LentChunk SourcePut::lend(std::size_t chunk, pack::Digest& digest) {
  if (object_) return nullptr;
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
  if (copy_) return copy_->content();
  return found_ ? lookup_.content_of(*found_) : "";
}

void SourcePut::remove_if_damaged() {
  if (!lookup_.remove_if_damaged(*found_)) return;
  found_.reset();
  object_.reset();
  list_.reset();
}

FoundCopy SourcePut::take_result() {
  const bool copied = needed();
  taken_ = true;
  if (copied) return copy_->publish();
  if (!found_) return find_or_copy(context_, lookup_);
  FoundCopy result = std::move(*found_);
  found_.reset();
  return result;
}

}  // namespace lockstep::transfer
