#include "staging/transfer/ring_put.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/error.h"
#include "staging/transfer/copy/parallel.h"

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

namespace {

constexpr std::size_t kStoringThreads = 2;
constexpr int kFinishingThreads = 4;

}  // namespace

RingPut::RingPut(PeerGroup& peers, std::size_t number, RingPart part, std::vector<SourcePut*> sources,
                 const std::vector<bool>& held)
    : peers_(peers), number_(number), part_(std::move(part)), sources_(std::move(sources)), held_(held) {
  ring_ = std::make_shared<Ring>(part_.place, part_.nodes, lists_from());
  peers_.exchange().serve(number_, ring_);
}

void RingPut::run() {
  try {
    get_all();
  } catch (const cache::NoSpace&) {
    if (std::none_of(sources_.begin(), sources_.end(),
                     [](const SourcePut* source) { return source->copies_anyway(); }))
      throw;
    ring_->leave();
    for (SourcePut* const source : sources_) {
      if (!source->is_here()) source->give_up();
    }
  }
}

void RingPut::get_all() {
  const auto count = [this](const CheckedChunk& arrived) {
    const PutContext& context = source_of(plan_->place(arrived.chunk)).context();
    context.tally.count(&PutResult::from_peers, arrived.data.bytes().size());
  };
  RingClient client(
      *ring_, peers_,
      {.number = number_, .part = part_, .context = context(), .count = count, .max_lanes = max_lanes()});
  make_lists();
  client.get_lists();
  make_lists();  // of a predecessor that is lost
  prepare();
  move_chunks(client);
  for (const std::size_t chunk : client.bad_chunks())
    suspects_.emplace(part_.predecessor.node, plan_->place(chunk).source);
  finish_copies();
}

// A holder of a pack has its index. The first node makes the lists of other sources, and of packs that no node has.
std::vector<ListRelay::From> RingPut::lists_from() const {
  std::vector<ListRelay::From> from;
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    const bool first_makes = !held_[s] || !sources_[s]->packed();
    const bool here =
        part_.nodes == 1 || sources_[s]->own_list() != nullptr || (part_.place == 0 && first_makes);
    from.push_back(here ? ListRelay::From::here : ListRelay::From::predecessor);
  }
  return from;
}

void RingPut::make_lists() {
  while (const std::optional<std::size_t> s = ring_->lists()->next_to_make()) {
    std::shared_ptr<const std::string> list = sources_[*s]->own_list();
    ring_->list_made(*s, list ? std::move(list) : sources_[*s]->make_list());
  }
}

void RingPut::prepare() {
  std::vector<const ChunkPlan*> plans;
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    sources_[s]->take_list(ring_->list(s));
    sources_[s]->prepare(part_.place == 0);
    plans.push_back(&sources_[s]->plan());
  }
  plan_.emplace(std::move(plans));
  const auto at = [this](std::size_t chunk) { return plan_->place(chunk); };
  ring_->begin_chunks(
      peers_.self(), deal_chunks(*plan_, part_.nodes, held_),
      [&](std::size_t chunk) { return source_of(at(chunk)).lacks(at(chunk).chunk); },
      {.bytes = [this](std::size_t chunk) { return plan_->bytes(chunk); },
       .digest = [this, at](std::size_t chunk) { return source_of(at(chunk)).digest(at(chunk).chunk); },
       .read = [this, at](
                   std::size_t chunk,
                   std::span<std::byte> into) { return source_of(at(chunk)).read(at(chunk).chunk, into); },
       .keep = context().options.sizes.buffers / 4});
}

// More connections than one make sense only if cores are left for them.
std::size_t RingPut::max_lanes() const {
  constexpr std::size_t kMaxLanes = 4;
  constexpr std::size_t kCoresOfLane = 4;
  if (part_.nodes == 1) return 1;
  if (const std::size_t forced = context().options.sizes.lanes; forced > 0) return forced;
  return std::clamp<std::size_t>(std::thread::hardware_concurrency() / kCoresOfLane, 1, kMaxLanes);
}

void RingPut::read_source() {
  while (const std::optional<std::size_t> chunk = ring_->take_read()) {
    const StreamPlan::Place place = plan_->place(*chunk);
    NewCopy& copy = source_of(place).copy();
    LoadedChunk loaded = copy.load(place.chunk);
    ring_->checked({*chunk, loaded.data, loaded.digest, peers_.self()});
    copy.take(place.chunk, std::move(loaded));
    ring_->stored(*chunk);
  }
}

void RingPut::store_arrivals() {
  while (std::optional<CheckedChunk> arrived = ring_->take_arrived()) {
    const StreamPlan::Place place = plan_->place(arrived->chunk);
    source_of(place).copy().take(place.chunk, {std::move(arrived->data), arrived->digest});
    ring_->stored(arrived->chunk);
  }
}

void RingPut::move_chunks(RingClient& client) {
  if (ring_->finished()) return;
  int readers = 0;
  for (SourcePut* const each : sources_) {
    if (each->needed()) readers = std::max(readers, each->copy().threads());
  }
  const auto end = [&] {
    ring_->stop();
    client.stop();
  };
  const std::size_t lanes = max_lanes();
  const std::size_t threads = lanes + kStoringThreads + static_cast<std::size_t>(readers);
  const auto work = [&](std::size_t i) {
    try {
      if (i == 0) {
        client.get_chunks();
      } else if (i < lanes) {
        client.get_chunks_too(i);
      } else if (i < lanes + kStoringThreads) {
        store_arrivals();
      } else {
        read_source();
      }
    } catch (...) {
      end();
      throw;
    }
  };
  parallel_for(threads, static_cast<int>(threads), work, end);
}

void RingPut::finish_copies() {
  parallel_for(sources_.size(), kFinishingThreads, [&](std::size_t s) {
    if (!sources_[s]->needed()) return;
    sources_[s]->finish(
        peers_.self(), [&](std::size_t chunk) { return ring_->origin(plan_->first(s) + chunk); },
        [this](std::uint32_t node) { return peers_.name(node); });
  });
}

}  // namespace lockstep::transfer
