#include "runtime/ddp/join.h"

#include <algorithm>

#include "common/error.h"

namespace lockstep::ddp {
namespace {

enum : std::uint8_t { kHasData = 1, kSynchronises = 2, kBroadcastsBuffers = 4 };

}  // namespace

struct Join::Everyone {
  std::vector<std::uint8_t> flags;  // of each rank

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

void Join::ask(std::uint8_t flags) {
  if (asked_) wait();
  everyone_ = std::make_shared<Everyone>();
  everyone_->flags.assign(static_cast<std::size_t>(communicator_.size()), 0);
  everyone_->flags[static_cast<std::size_t>(communicator_.rank())] = flags;
  // The buckets of the backward that follows are reduced after this, and read the factor then.
  const auto divide = [everyone = everyone_, factor = factor_,
                       by_active = !options_.divide_by_initial_world_size] {
    const auto active = everyone->with_data();
    if (by_active && active > 0) *factor = 1.0 / static_cast<double>(active);
  };
  asked_ = communicator_.all_reduce({everyone_->flags.data(), everyone_->flags.size(), comm::DataType::u8},
                                    label_, {.op = comm::ReduceOp::max, .then = divide});
}

// Whether anybody has data.
bool Join::wait() {
  asked_->wait();
  asked_.reset();
  if (everyone_->with_data() == 0) return false;
  for (std::size_t rank = 0; rank < everyone_->flags.size(); ++rank) {
    if ((everyone_->flags[rank] & kHasData) != 0) authority_ = static_cast<int>(rank);
  }
  return true;
}

int Join::announce(Plan plan) {
  int flags = kHasData;
  if (plan.synchronises) flags |= kSynchronises;
  if (plan.broadcasts_buffers) flags |= kBroadcastsBuffers;
  ask(static_cast<std::uint8_t>(flags));
  if (!options_.throw_on_early_termination && !plan.broadcasts_buffers) return authority_;
  wait();
  if (options_.throw_on_early_termination && everyone_->with_data() < communicator_.size()) {
    const auto ended = std::find_if(everyone_->flags.begin(), everyone_->flags.end(),
                                    [](std::uint8_t f) { return (f & kHasData) == 0; });
    fail("rank {} has no more data, and the others do (throw_on_early_termination)",
         ended - everyone_->flags.begin());
  }
  return authority_;
}

bool Join::shadow(Plan& plan) {
  ask(0);
  if (!wait()) return false;
  if (options_.throw_on_early_termination) {
    fail("this rank, {}, has no more data, and others do (throw_on_early_termination)", communicator_.rank());
  }
  plan = {.synchronises = everyone_->any(kSynchronises),
          .broadcasts_buffers = everyone_->any(kBroadcastsBuffers)};
  return true;
}

}  // namespace lockstep::ddp
