// Two runs with the same seed are equal to the bit, and each purpose has numbers of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "runtime/ddp/collectives.h"
#include "runtime/train/settings.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

// The losses of a training with dropout and shuffled rows.
std::vector<double> train_with(std::uint64_t seed) {
  const Seeds seeds(seed);
  seeds.seed_model();
  Net net;
  seeds.seed_rank(world());
  std::mt19937_64 order(seeds.data());
  DistributedDataParallel ddp(net, world(), small_buckets());
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto data = rows(32, 1);
  std::vector<std::int64_t> places(32);
  std::iota(places.begin(), places.end(), 0);
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    std::shuffle(places.begin(), places.end(), order);
    const auto batch = my_part(data.index_select(0, torch::tensor(places).slice(0, 0, 2 * world().size())));
    const auto output = ddp(torch::dropout(batch, 0.5, /*train=*/true));
    const auto loss = output.square().sum();
    ddp.backward(loss, batch.size(0));
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(Seeds, TwoEqualRunsGiveTheSameLossesToTheBit) {
  const auto first = train_with(11);
  torch::rand({7});  // another state of the generators before the second run
  EXPECT_EQ(train_with(11), first);
  EXPECT_NE(train_with(12), first);
}

TEST(Seeds, TheModelIsEqualOnAllRanksAndDropoutDiffers) {
  const Seeds seeds(5);
  seeds.seed_model();
  EXPECT_TRUE(same_bits_everywhere(torch::rand({8}, torch::kDouble)));
  seeds.seed_rank(world());
  const auto all = all_gather(world(), torch::rand({8}, torch::kDouble), "random numbers");
  for (int i = 0; i < world().size(); ++i) {
    for (int j = 0; j < i; ++j) EXPECT_FALSE(torch::equal(all[i], all[j])) << "ranks " << i << " and " << j;
  }
}

TEST(Seeds, DataAreEqualOnAllRanksAndDifferBetweenSeeds) {
  EXPECT_TRUE(same_bits_everywhere(torch::tensor({static_cast<std::int64_t>(Seeds(5).data())})));
  EXPECT_NE(Seeds(5).data(), Seeds(6).data());
}

}  // namespace
}  // namespace lockstep::testing
