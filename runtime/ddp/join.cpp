#include "runtime/ddp/join.h"

#include <algorithm>

#include "common/error.h"

namespace lockstep::ddp {
namespace {

enum : std::uint8_t { kHasData = 1, kSynchronises = 2, kBroadcastsBuffers = 4 };

}  // namespace

struct Join::RankFlags {
  std::vector<std::uint8_t> flags;  // by rank

  auto with_data() const {
    return std::count_if(flags.begin(), flags.end(), [](std::uint8_t f) { return (f & kHasData) != 0; });
  }
  bool any(std::uint8_t flag) const {
    return std::any_of(flags.begin(), flags.end(), [&](std::uint8_t f) { return (f & flag) != 0; });
  }
};

Join::Join(comm::Communicator& communicator, std::shared_ptr<double> factor, const JoinOptions& options)
    : communicator_(communicator), factor_(std::move(factor)), options_(options) {
  if (!options.divide_by_initial_world_size) label_ += ", divided by the active ranks";
  if (options.throw_on_early_termination) label_ += ", thrown on early termination";
}

Join::~Join() {
  *factor_ = 1.0 / communicator_.size();
}

void Join::exchange(std::uint8_t flags) {
  if (exchange_) wait();
  ranks_ = std::make_shared<RankFlags>();
  ranks_->flags.assign(static_cast<std::size_t>(communicator_.size()), 0);
  ranks_->flags[static_cast<std::size_t>(communicator_.rank())] = flags;
  // The buckets of the next backward are reduced after this operation, so they read the new factor.
  const auto divide = [ranks = ranks_, factor = factor_, by_active = !options_.divide_by_initial_world_size] {
    const auto active = ranks->with_data();
    if (by_active && active > 0) *factor = 1.0 / static_cast<double>(active);
  };
  exchange_ = communicator_.all_reduce({ranks_->flags.data(), ranks_->flags.size(), comm::DataType::u8},
                                       label_, {.op = comm::ReduceOp::max, .then = divide});
}

// Returns whether any rank has data.
bool Join::wait() {
  exchange_->wait();
  exchange_.reset();
  if (ranks_->with_data() == 0) return false;
  for (std::size_t rank = 0; rank < ranks_->flags.size(); ++rank) {
    if ((ranks_->flags[rank] & kHasData) != 0) newest_rank_ = static_cast<int>(rank);
  }
  return true;
}

int Join::announce(Operations operations) {
  int flags = kHasData;
  if (operations.synchronises) flags |= kSynchronises;
  if (operations.broadcasts_buffers) flags |= kBroadcastsBuffers;
  exchange(static_cast<std::uint8_t>(flags));
  // NCCL reads the factor when a reduction is called, not when it runs.
  const bool needs_factor = operations.synchronises && !options_.divide_by_initial_world_size;
  if (!options_.throw_on_early_termination && !operations.broadcasts_buffers && !needs_factor)
    return newest_rank_;
  wait();
  if (options_.throw_on_early_termination && ranks_->with_data() < communicator_.size()) {
    const auto ended = std::find_if(ranks_->flags.begin(), ranks_->flags.end(),
                                    [](std::uint8_t f) { return (f & kHasData) == 0; });
    fail("rank {} has no more data, but other ranks do (throw_on_early_termination is set)",
         ended - ranks_->flags.begin());
  }
  return newest_rank_;
}

bool Join::take_part_without_data(Operations& operations) {
  exchange(0);
  if (!wait()) return false;
  if (options_.throw_on_early_termination) {
    fail("this rank, {}, has no more data, but other ranks do (throw_on_early_termination is set)",
         communicator_.rank());
  }
  operations = {.synchronises = ranks_->any(kSynchronises),
                .broadcasts_buffers = ranks_->any(kBroadcastsBuffers)};
  return true;
}

}  // namespace lockstep::ddp
