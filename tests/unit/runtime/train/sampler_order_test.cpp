// docs/users/migrating.md shows how to reproduce the order of PyTorch's DistributedSampler.
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace lockstep {
namespace {

TEST(SamplerOrder, OfTheDocumentsIsThatOfPyTorchsDistributedSampler) {
  // list(DistributedSampler(range(10), 4, rank, shuffle=True, seed=0)) for ranks 0 to 3, from PyTorch's sampler:
  // randperm(10) of generator 0, the first two again, every fourth one.
  const std::vector<std::vector<std::int64_t>> expected = {{4, 3, 6}, {1, 9, 2}, {7, 0, 4}, {5, 8, 1}};
  const std::int64_t size = 10;
  const std::int64_t ranks = 4;
  const std::uint64_t epoch = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    torch::Tensor order = torch::randperm(size, at::detail::createCPUGenerator(0 + epoch));
    const std::int64_t total = (size + ranks - 1) / ranks * ranks;
    order = torch::cat({order, order.slice(0, 0, total - size)});
    const torch::Tensor mine = order.slice(0, rank, total, ranks);
    EXPECT_TRUE(torch::equal(mine, torch::tensor(expected[static_cast<std::size_t>(rank)]))) << mine;
  }
}

}  // namespace
}  // namespace lockstep
