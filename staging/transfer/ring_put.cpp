#include "staging/transfer/ring_put.h"

#include <algorithm>
#include <thread>

#include "common/error.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {
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
  RingClient client(*ring_, client_options());
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
  while (const std::optional<std::size_t> s = ring_->next_to_make()) {
    std::shared_ptr<const std::string> list = sources_[*s]->own_list();
    ring_->list_made(*s, list ? std::move(list) : sources_[*s]->make_list());
  }
}

RingClient::Options RingPut::client_options() {
  const PutContext& context = sources_.front()->context();
  RingClient::Options options{
      .number = number_,
      .timeouts = peers_.exchange().timeouts(),
      .name = part_.predecessor.name,
      .connect = {},
      .has_left = [this] { return peers_.rendezvous().has_left(part_.predecessor.node); },
      .buffer = [&context](std::uint32_t bytes) { return context.resources.memory.chunks.take(bytes); },
      .count =
          [this](const CheckedChunk& arrived) {
            source_of(plan_->place(arrived.chunk))
                .context()
                .tally.count(&PutResult::from_peers, arrived.data->bytes().size());
          },
      .note = [&context](const std::string& text) { context.tally.note(text); },
      .max_lanes = max_lanes(),
      .lanes = std::max<std::size_t>(context.options.sizes.lanes, 1)};
  if (part_.nodes > 1)
    options.connect = [this] {
      const RingPart::Peer& peer = part_.predecessor;
      return peers_.exchange().connect(peer.hosts, peer.port, peer.node);
    };
  return options;
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
       .keep = sources_.front()->context().options.sizes.buffers / 4});
}

// More connections than one make sense only if cores are left for them.
std::size_t RingPut::max_lanes() const {
  constexpr std::size_t kMaxLanes = 4;
  constexpr std::size_t kCoresOfLane = 4;
  if (part_.nodes == 1) return 1;
  if (const std::size_t forced = sources_.front()->context().options.sizes.lanes; forced > 0) return forced;
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
