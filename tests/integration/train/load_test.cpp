// The distributed optimizer continues after a checkpoint was loaded into its model, and refuses other
// changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "common/error.h"
#include "runtime/train/distributed_optimizer.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

std::string checkpoint(std::uint64_t seed) {
  torch::manual_seed(seed);
  Net other;
  std::ostringstream file;
  torch::save(other, file);
  return file.str();
}

void load(Net& net, const std::string& bytes) {
  std::istringstream file(bytes);
  torch::load(net, file);
}

// The checkpoint is loaded before a forward, and between backward and step().
TEST(DistributedOptimizerOfALoadedModel, ContinuesAsOneProcessWould) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::Adam> optimizer(ddp, torch::optim::AdamOptions(0.01));
  Net alone = copy_of(net);
  torch::optim::Adam alone_optimizer(alone->parameters(), torch::optim::AdamOptions(0.01));
  for (int step = 0; step < 10; ++step) {
    const auto load_both = [&] {
      const std::string bytes = checkpoint(static_cast<std::uint64_t>(step));
      load(net, bytes);
      load(alone, bytes);
    };
    if (step == 3) load_both();
    const auto batch = rows(3 * world().size(), 20 + static_cast<std::uint64_t>(step));
    ddp.backward(sum_of_squares(ddp(my_part(batch)), my_part(batch)), 3);
    (sum_of_squares(alone(batch), batch) / batch.size(0)).backward();
    if (step == 6) load_both();
    optimizer.step();
    alone_optimizer.step();
    optimizer.zero_grad();
    alone_optimizer.zero_grad();
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      const auto difference = net->parameters()[i] - alone->parameters()[i];
      EXPECT_LE(difference.abs().max().item<double>(), 1e-10) << i << " in step " << step;
      EXPECT_TRUE(same_bits_everywhere(net->parameters()[i]));
    }
  }
}

TEST(DistributedOptimizerOfALoadedModel, RefusesAModelConvertedBeforeStep) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::Adam> optimizer(ddp, torch::optim::AdamOptions(0.01));
  const auto batch = rows(2, 1);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    ddp.backward(sum_of_squares(ddp(batch), batch), 2);
    if (step == 1) net->to(torch::kFloat);
    const std::string error = error_of([&] { optimizer.step(); });
    EXPECT_EQ(error.find("converted between backward and step()") != std::string::npos, step == 1) << error;
  }
}

TEST(DistributedOptimizer, RefusesAParameterThatIsUnfrozenLaterByName) {
  Net net;
  net->middle->bias.set_requires_grad(false);
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::Adam> optimizer(ddp, torch::optim::AdamOptions(0.01));
  const auto batch = rows(2, 1);
  ddp.backward(sum_of_squares(ddp(batch), batch), 2);
  optimizer.step();
  optimizer.zero_grad();
  net->middle->bias.set_requires_grad(true);
  ddp.backward(sum_of_squares(ddp(batch), batch), 2);
  const auto message =
      ::testing::HasSubstr("parameter 'middle.bias' was added or unfrozen after the optimizer was const");
  EXPECT_THAT(error_of([&] { optimizer.clip_grad_norm(1); }), message);
  EXPECT_THAT(error_of([&] { optimizer.step(); }), message);
}

}  // namespace
}  // namespace lockstep::testing
