// Tests the code paths for gradients on a GPU, on any machine: with a communicator that behaves like NCCL's
// but works in host memory. It takes no scale factors. tests/device runs the same code with LibTorch's streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "runtime/ddp/operation_observer.h"
#include "runtime/ddp/reducer.h"
#include "tests/integration/ddp/models.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

class DeviceCommunicator : public comm::Communicator {
 public:
  explicit DeviceCommunicator(comm::Communicator& host)
      : Communicator(host.place()), host_(host.split(0, "like a device")) {}

  std::string_view name() const override { return "like a device"; }
  int device() const override { return 0; }

  comm::WorkHandle all_reduce(comm::Buffer buffer, std::string_view label,
                              comm::ReduceOptions options) override {
    ++reductions;
    EXPECT_EQ(options.scale, nullptr) << "NCCL sums without a factor";
    return host_->all_reduce(buffer, label, std::move(options));
  }
  comm::WorkHandle broadcast(comm::Buffer buffer, int root, std::string_view label) override {
    return host_->broadcast(buffer, root, label);
  }
  comm::WorkHandle all_gather(comm::Buffer mine, void* all, std::string_view label) override {
    return host_->all_gather(mine, all, label);
  }
  comm::WorkHandle reduce_scatter(void* all, comm::Buffer mine, std::string_view label,
                                  comm::ReduceOptions options) override {
    return host_->reduce_scatter(all, mine, label, std::move(options));
  }
  comm::WorkHandle exchange(std::span<const comm::PeerMessage> sends,
                            std::span<const comm::PeerMessage> receives, std::string_view label) override {
    return host_->exchange(sends, receives, label);
  }
  comm::WorkHandle barrier(std::string_view label) override { return host_->barrier(label); }
  std::unique_ptr<Communicator> split(int color, std::string_view name) override {
    return host_->split(color, name);
  }
  std::shared_ptr<void> allocate(std::size_t bytes) override { return host_->allocate(bytes); }
  void progress() override { host_->progress(); }

  int reductions = 0;

 private:
  std::unique_ptr<comm::Communicator> host_;
};

// A communicator for host memory that notes which operations are waited for.
class NotingCommunicator : public DeviceCommunicator {
 public:
  using DeviceCommunicator::DeviceCommunicator;
  int device() const override { return -1; }

  comm::WorkHandle all_reduce(comm::Buffer buffer, std::string_view label,
                              comm::ReduceOptions options) override {
    struct Noting : comm::Work {
      bool done() const override { return work->done(); }
      void wait() override {
        waited->push_back(name);
        work->wait();
      }
      comm::WorkTimes times() const override { return work->times(); }
      comm::WorkHandle work;
      std::vector<std::string>* waited = nullptr;
      std::string name;
    };
    auto noting = std::make_shared<Noting>();
    noting->name = fmt::format("{} {}", label, reductions);
    noting->waited = &waited;
    noting->work = DeviceCommunicator::all_reduce(buffer, label, std::move(options));
    return noting;
  }

  std::vector<std::string> waited;
};

// Compares a step of each rank's rows with a step of all rows in one process.
class OnADevice : public ::testing::Test {
 protected:
  DeviceCommunicator device{world().communicator()};
  bool sync = true;

  ddp::Reducer reducer_of(torch::nn::Module& module, const DistributedDataParallelOptions& options) {
    return {world().communicator(), device, world().timer(), ddp::named_parameters_of(module), options, sync};
  }

  static torch::Tensor loss_of(Net& net, int rank, int step) {
    const auto inputs = rows(2 + rank, static_cast<std::uint64_t>(100 * step + rank));
    return sum_of_squares(net(inputs.to(net->out_bias.dtype())), torch::ones_like(inputs));
  }
};

TEST_F(OnADevice, CountsAreAveragedWithTheFactorOfTheSameStep) {
  torch::manual_seed(1);
  Net net;
  Net whole = copy_of(net);
  auto reducer = reducer_of(*net, small_buckets());
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    whole->zero_grad();
    const auto loss = loss_of(net, world().rank(), step);
    // The last rank is late, and the factor is not known without its tokens.
    if (world().rank() == world().size() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    reducer.begin(ddp::Averaging::by_count, (2 + world().rank()) * (step + 1));
    loss.backward(torch::full_like(loss, reducer.average().loss_factor()));
    reducer.finish();

    std::int64_t tokens = 0;
    for (int rank = 0; rank < world().size(); ++rank) {
      loss_of(whole, rank, step).backward();
      tokens += (2 + rank) * (step + 1);
    }
    const auto mine = net->parameters();
    const auto expected = whole->parameters();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      EXPECT_TRUE(
          torch::allclose(mine[i].grad(), expected[i].grad() / static_cast<double>(tokens), 1e-12, 1e-14));
    }
  }
  EXPECT_GT(device.reductions, 3);
}

TEST_F(OnADevice, SixteenBitGradientsAreScaledBeforeTheReduction) {
  torch::nn::Linear layer(3, 2);
  layer->to(torch::kBFloat16);
  auto reducer = reducer_of(*layer, small_buckets());
  for (int step = 0; step < 2; ++step) {
    layer->zero_grad();
    reducer.begin(ddp::Averaging::over_ranks, 0);
    ((layer->weight.sum() + layer->bias.sum()) * (world().rank() + 1)).backward();
    reducer.finish();
    const double mean = (world().size() + 1) / 2.0;
    for (const auto& parameter : layer->parameters()) {
      EXPECT_NEAR(parameter.grad().max().item<double>(), mean, mean / 128);
      EXPECT_NEAR(parameter.grad().min().item<double>(), mean, mean / 128);
    }
  }
}

// On the device, where a product with a double takes many times longer.
TEST_F(OnADevice, FloatGradientsAreMultipliedByAFloat) {
  torch::nn::Linear layer(3, 2);
  auto reducer = reducer_of(*layer, small_buckets());
  std::vector<std::string> mixed;
  const ddp::OperationObserver observer([&](const ddp::Operation& operation) {
    if (std::string_view(operation.name) != "aten::mul_") return;
    for (const auto& input : operation.inputs) {
      if (input.isTensor() && input.toTensor().scalar_type() == torch::kDouble && input.toTensor().dim() > 0)
        mixed.emplace_back(operation.name);
    }
  });
  for (int step = 0; step < 3; ++step) {
    layer->zero_grad();
    reducer.begin(ddp::Averaging::by_count, 3);
    const auto loss = layer->weight.sum() + layer->bias.sum();
    loss.backward(torch::full_like(loss, reducer.average().loss_factor()));
    reducer.finish();
    for (const auto& parameter : layer->parameters())
      EXPECT_NEAR(parameter.grad().max().item<double>(), 1.0 / 3, 1e-7);
  }
  EXPECT_THAT(mixed, ::testing::IsEmpty());
}

TEST_F(OnADevice, OnlyGradientsThatAreNotZeroAreNotAveragedAgain) {
  torch::nn::Linear layer(3, 2);
  auto reducer = reducer_of(*layer, small_buckets());
  const auto step = [&](std::int64_t count) {
    reducer.begin(ddp::Averaging::by_count, count);
    const auto loss = layer->weight.sum() + layer->bias.sum();
    loss.backward(torch::full_like(loss, reducer.average().loss_factor()));
    reducer.finish();
  };
  for (int i = 0; i < 3; ++i) {
    step(2);
    EXPECT_THAT(error_of([&] { step(2); }), HasSubstr("have not been zeroed"));
    for (auto& parameter : layer->parameters()) parameter.mutable_grad().data().zero_();
  }
  step(0);  // no rank has a token: zeros
  step(2);
}

// So the host may be a step ahead of the device and of the other ranks.
TEST_F(OnADevice, AMessageIsReceivedInTheNextStep) {
  torch::nn::Linear layer(3, 2);
  layer->to(torch::kDouble);
  NotingCommunicator host(world().communicator());
  ddp::Reducer reducer(host, device, world().timer(), ddp::named_parameters_of(*layer), small_buckets(),
                       sync);
  for (int step = 0; step < 5; ++step) {
    host.waited.clear();
    layer->zero_grad();
    reducer.begin(ddp::Averaging::by_count, 1);
    (layer->weight.sum() + layer->bias.sum()).backward();
    reducer.finish();
    std::vector<std::string> expected;
    if (step != 1) expected.push_back(fmt::format("the step's message {}", std::max(0, step - 1)));
    EXPECT_EQ(host.waited, expected) << "in step " << step;
  }
}

}  // namespace
}  // namespace lockstep::testing
