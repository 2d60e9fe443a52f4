// The memory of operations lives until they end, even if the model was destroyed after an exception.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "common/error.h"
#include "runtime/ddp/reducer.h"
#include "tests/integration/ddp/models.h"
#include "tests/unit/runtime/ddp/fake_communicator.h"

namespace lockstep::testing {
namespace {

/// One of two ranks. The other one answers only in wait(): then all operations so far are done.
class SlowCommunicator : public FakeCommunicator {
 public:
  SlowCommunicator() : FakeCommunicator({.size = 2, .node_name = "here"}) {}

  comm::WorkHandle all_reduce(comm::Buffer /*buffer*/, std::string_view /*label*/,
                              comm::ReduceOptions options) override {
    pending_.push_back(std::move(options));
    return start({});
  }

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    auto memory = Communicator::allocate(bytes);
    buckets.emplace_back(memory);
    return memory;
  }

  /// Ends all operations.
  void answer() {
    for (; !pending_.empty(); pending_.pop_front()) {
      if (pending_.front().then) pending_.front().then();
    }
  }

  std::size_t alive() const {
    return static_cast<std::size_t>(
        std::count_if(buckets.begin(), buckets.end(), [](const auto& bucket) { return !bucket.expired(); }));
  }

  std::vector<std::weak_ptr<void>> buckets;

 protected:
  comm::WorkHandle start(std::string_view /*label*/) override { return std::make_shared<PendingWork>(*this); }

 private:
  class PendingWork : public comm::Work {
   public:
    explicit PendingWork(SlowCommunicator& communicator) : communicator_(communicator) {}
    bool done() const override { return communicator_.pending_.empty(); }
    void wait() override { communicator_.answer(); }
    comm::WorkTimes times() const override { return {}; }

   private:
    SlowCommunicator& communicator_;
  };

  std::deque<comm::ReduceOptions> pending_;
};

class Sum : public CommHook {
 public:
  CommFuture start(GradBucket& bucket, comm::Communicator& ranks) override {
    return {{ranks.all_reduce(bucket.memory(), "sum")}, {}};
  }
};

// The buckets alive after a backward that threw when one reduction ran, and those after that reduction.
std::pair<std::size_t, std::size_t> alive_after_throw(const std::shared_ptr<CommHook>& hook) {
  SlowCommunicator communicator;
  profile::StepTimer timer({}, {.record = false, .folder = {}});
  const bool sync = true;
  {
    Net net;
    ddp::Reducer reducer(communicator, communicator, timer, ddp::named_parameters_of(*net), small_buckets(),
                         sync);
    if (hook) reducer.register_comm_hook(hook);
    reducer.begin(ddp::Averaging::by_count, 5);
    net(rows(1, 1)).sum().backward();
    reducer.finish();  // the buckets are laid out again
    net->zero_grad();
    reducer.begin(ddp::Averaging::by_count, 5);
    torch::Tensor loss = torch::zeros({}, torch::kDouble);
    const auto parameters = net->named_parameters();
    EXPECT_EQ(communicator.buckets.size(), reducer.layout().size())
        << "buckets are allocated once, in the right order";
    const auto layout = reducer.layout();
    for (const auto& name : layout.front()) loss = loss + parameters[name].sum();
    loss.backward();  // starts the reduction of the first bucket
    EXPECT_EQ(reducer.observer().trace().launches.size(), 1U);
    EXPECT_THROW(reducer.finish(), Error);
  }
  const std::size_t alive = communicator.alive();
  communicator.answer();
  return {alive, communicator.alive()};
}

TEST(Operations, KeepTheirBucketsWhenBackwardThrows) {
  EXPECT_EQ(alive_after_throw(nullptr), std::pair(1UL, 0UL));
  EXPECT_EQ(alive_after_throw(std::make_shared<Sum>()), std::pair(1UL, 1UL))
      << "what a hook runs is not known";
}

}  // namespace
}  // namespace lockstep::testing
