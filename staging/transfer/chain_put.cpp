#include "staging/transfer/chain_put.h"

#include <algorithm>
#include <thread>

#include "common/error.h"
#include "staging/transfer/copy/parallel.h"
#include "staging/transfer/exchange/chunk_shares.h"

namespace lockstep::transfer {
namespace {

constexpr std::size_t kMaxChains = std::size_t{1} << 20U;
constexpr std::size_t kStoringThreads = 2;
constexpr int kFinishingThreads = 4;

}  // namespace

ChainPut::ChainPut(PeerGroup& peers, std::size_t batch, ChainPart part, std::vector<SourcePut*> sources)
    : peers_(peers),
      batch_(batch),
      part_(std::move(part)),
      sources_(std::move(sources)),
      topic_(batch * kMaxChains + part_.chain) {
}

void ChainPut::run() {
  Subscription subscription(this->subscription());
  subscription.get_lists();
  prepare();
  move_chunks(subscription);
  finish_copies();
}

// The index in this chain of a source of the batch.
std::size_t ChainPut::index_of(std::size_t number) const {
  const auto at = std::lower_bound(part_.sources.begin(), part_.sources.end(), number);
  return static_cast<std::size_t>(at - part_.sources.begin());
}

// Serves the lists that this node has or makes; the others come from its predecessor.
std::vector<std::size_t> ChainPut::lists_from_predecessor() {
  std::vector<std::size_t> wanted;
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    std::shared_ptr<const std::string> list = sources_[s]->own_list();
    if (!list && part_.lists) list = sources_[s]->make_list();
    if (list) {
      peers_.exchange().serve_list(topic_, part_.sources[s], std::move(list));
    } else {
      wanted.push_back(part_.sources[s]);
    }
  }
  return wanted;
}

Subscription::Options ChainPut::subscription() {
  return {.topic = topic_,
          .predecessor = part_.predecessor,
          .timeouts = peers_.exchange().timeouts(),
          .name = [this](std::uint32_t node) { return peers_.name(node); },
          .connect = [this](std::uint32_t node) { return peers_.connect(node); },
          .pass_over =
              [this](std::uint32_t node) { return peers_.rendezvous().pass_over(batch_, part_.chain, node); },
          .is_lost = [this](std::uint32_t node) { return peers_.rendezvous().is_lost(node); },
          .lists = lists_from_predecessor(),
          .take_list =
              [this](std::size_t number, std::string list) {
                peers_.exchange().serve_list(topic_, number, source(number).take_list(std::move(list)));
              },
          .make_list =
              [this](std::size_t number) {
                peers_.exchange().serve_list(topic_, number, source(number).make_list());
              },
          .chunks_of =
              [this](std::size_t number) {
                const std::size_t s = index_of(number);
                return std::pair(plan_->first(s), plan_->first(s + 1));
              },
          .bytes = [this](std::size_t chunk) { return plan_->bytes(chunk); },
          .buffer =
              [this](std::uint32_t bytes) {
                return sources_.front()->context().resources.memory.chunks.take(bytes);
              },
          .store =
              [this](ArrivedChunk arrived) {
                const StreamPlan::Place place = plan_->place(arrived.chunk);
                sources_[place.source]->context().tally.count_from_peer(arrived.data.bytes().size());
                arrivals_.add(std::move(arrived));
              },
          .predecessor_lacks = [this] { predecessor_lacked_ = true; },
          .note = [this](const std::string& text) { sources_.front()->context().tally.note(text); }};
}

void ChainPut::prepare() {
  std::vector<const ChunkPlan*> plans;
  for (SourcePut* const each : sources_) {
    each->prepare(part_.lists);
    plans.push_back(&each->plan());
  }
  plan_.emplace(std::move(plans));
  schedule_.emplace(
      ChainNode{peers_.self(), part_.place}, deal_chunks(*plan_, part_.nodes, part_.held),
      [this](std::size_t chunk) {
        const StreamPlan::Place place = plan_->place(chunk);
        return sources_[place.source]->lacks(place.chunk);
      },
      lanes());
  const auto read = [this](std::size_t chunk, std::span<std::byte> into, pack::Digest& digest) {
    const StreamPlan::Place place = plan_->place(chunk);
    return sources_[place.source]->read(place.chunk, into, digest);
  };
  const auto lend = [this](std::size_t chunk, pack::Digest& digest) {
    const StreamPlan::Place place = plan_->place(chunk);
    return sources_[place.source]->lend(place.chunk, digest);
  };
  peers_.exchange().serve_chunks(
      topic_, std::make_shared<StreamChunks>(StreamChunks{*plan_, *schedule_, read, lend}));
}

// One connection decrypts about 1 GB/s on one core. Several make sense if there is more to receive than the first one
// would carry in a moment, and if cores are left for them.
std::size_t ChainPut::lanes() const {
  if (const std::size_t lanes = sources_.front()->context().options.sizes.lanes; lanes > 0) return lanes;
  constexpr std::size_t kMaxLanes = 4;
  constexpr std::size_t kChunksOfLane = 64;
  constexpr std::size_t kCoresOfLane = 4;
  return std::clamp<std::size_t>(std::min<std::size_t>(std::thread::hardware_concurrency() / kCoresOfLane,
                                                       plan_->size() / kChunksOfLane),
                                 1, kMaxLanes);
}

void ChainPut::read_share(const std::function<bool()>& stop) {
  while (!stop()) {
    const std::optional<std::size_t> chunk = schedule_->take_own();
    if (!chunk) return;
    const StreamPlan::Place place = plan_->place(*chunk);
    copy_of(place).read_from_source(place.chunk);
    schedule_->stored(*chunk, peers_.self());
  }
}

void ChainPut::store_arrivals() {
  while (std::optional<ArrivedChunk> arrived = arrivals_.take()) {
    const StreamPlan::Place place = plan_->place(arrived->chunk);
    copy_of(place).take(place.chunk, std::move(arrived->data), arrived->digest);
    schedule_->stored(arrived->chunk, arrived->origin);
  }
}

void ChainPut::move_chunks(Subscription& subscription) {
  if (schedule_->finished()) return;
  int readers = 0;
  for (SourcePut* const each : sources_) {
    if (each->needed()) readers = std::max(readers, each->copy().threads());
  }
  const auto end = [this] {
    schedule_->stop();
    arrivals_.end();
  };
  const std::size_t lanes = this->lanes();
  std::vector<Subscription> others;
  for (std::size_t lane = 1; lane < lanes; ++lane) others.push_back(subscription.lane(lane));
  const std::size_t threads = lanes + kStoringThreads + static_cast<std::size_t>(readers);
  const auto work = [&](std::size_t i, const std::function<bool()>& stop) {
    try {
      if (i < lanes) {
        (i == 0 ? subscription : others[i - 1]).get_chunks(*schedule_);
        schedule_->wait_until_end();
        arrivals_.end();
      } else if (i < lanes + kStoringThreads) {
        store_arrivals();
      } else {
        read_share(stop);
      }
    } catch (...) {
      end();
      throw;
    }
  };
  parallel_for(threads, static_cast<int>(threads), work, end);
}

void ChainPut::finish_copies() {
  parallel_for(sources_.size(), kFinishingThreads, [&](std::size_t s, const std::function<bool()>&) {
    if (!sources_[s]->needed()) return;
    sources_[s]->finish(
        peers_.self(), [&](std::size_t chunk) { return schedule_->origin(plan_->first(s) + chunk); },
        [this](std::uint32_t node) { return peers_.name(node); });
  });
}

}  // namespace lockstep::transfer
