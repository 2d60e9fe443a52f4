// A model may have complex and real parameters. Complex gradients are sent as real numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/ddp/hooks/compression.h"
#include "runtime/ddp/reducer.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

/// A layer in the frequency domain, with a complex matrix, a complex number and real ones.
struct SpectralImpl : torch::nn::Module {
  SpectralImpl() {
    torch::manual_seed(3);
    mix = register_parameter("mix", torch::randn({6, 6}, torch::kComplexDouble));
    real = register_module("real", torch::nn::Linear(6, 6));
    turn = register_parameter("turn", torch::randn({}, torch::kComplexDouble));
    real->to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const auto hidden = torch::matmul(real(input).to(torch::kComplexDouble), mix) * turn;
    return torch::tanh(torch::real(hidden)) + torch::imag(hidden);
  }
  torch::Tensor mix;
  torch::nn::Linear real = nullptr;
  torch::Tensor turn;
};
TORCH_MODULE(Spectral);

void expect_gradients_of_one_process(const DistributedDataParallelOptions& options, double tolerance,
                                     const std::shared_ptr<CommHook>& hook = nullptr) {
  Spectral net;
  DistributedDataParallel ddp(net, world(), options);
  if (hook) ddp.register_comm_hook(hook);
  Spectral alone;
  for (int step = 0; step < 4; ++step) {
    const auto batch = rows(5 * world().size(), 70 + static_cast<std::uint64_t>(step));
    const auto mine = my_part(batch);
    for (int m = 0; m < 2; ++m) {
      const auto hold = ddp.no_sync_unless(m == 1);
      const auto part = mine.chunk(2)[m];
      ddp.backward(sum_of_squares(ddp(part), part), part.size(0));
    }
    (sum_of_squares(alone(batch), batch) / batch.size(0)).backward();
    EXPECT_LE(gradient_difference(*net, *alone), tolerance) << "step " << step;
    EXPECT_EQ(net->mix.grad().scalar_type(), torch::kComplexDouble);
    for (const auto& parameter : net->parameters()) EXPECT_TRUE(same_bits_everywhere(parameter.grad()));
    net->zero_grad();
    alone->zero_grad();
  }
}

TEST(ComplexParameters, HaveTheGradientsOfOneProcess) {
  expect_gradients_of_one_process(small_buckets(), 1e-12);
}

TEST(ComplexParameters, WorkWithUnusedParametersAndSeparateGradients) {
  auto options = small_buckets();
  options.find_unused_parameters = true;
  options.gradient_as_bucket_view = false;
  expect_gradients_of_one_process(options, 1e-12);
}

TEST(ComplexParameters, WorkWithHooks) {
  expect_gradients_of_one_process(small_buckets(), 2e-3, fp16_compress_hook());
}

TEST(ComplexParameters, StartWithTheValuesOfRankZero) {
  Spectral net;
  torch::manual_seed(static_cast<std::uint64_t>(world().rank()) + 1);
  {
    const torch::NoGradGuard no_grad;
    net->mix.copy_(torch::randn_like(net->mix));
  }
  const DistributedDataParallel ddp(net, world());
  EXPECT_TRUE(same_bits_everywhere(torch::view_as_real(net->mix.detach())));
}

}  // namespace
}  // namespace lockstep::testing
