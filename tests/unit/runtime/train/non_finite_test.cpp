// The first value that is not finite is traced to its module.
#include <gtest/gtest.h>

#include <limits>

#include "runtime/train/debug.h"

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    blocks =
        register_module("blocks", torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.fill_(0.5);
  }
  torch::Tensor forward(const torch::Tensor& x) { return blocks->forward(torch::relu(first(x))); }
  torch::nn::Linear first{nullptr};
  torch::nn::Sequential blocks{nullptr};
};
TORCH_MODULE(Net);

std::string found_in(Net& net, const std::function<torch::Tensor()>& forward) {
  return first_non_finite(*net, [&] { forward(); });
}

TEST(FirstNonFinite, NamesTheModuleThatOverflows) {
  Net net;
  {
    const torch::NoGradGuard no_grad;
    net->blocks[1]->as<torch::nn::Linear>()->weight.fill_(3e38);
  }
  const auto x = torch::ones({2, 4});
  EXPECT_EQ(found_in(net, [&] { return net(x).square().log(); }),
            "aten::addmm in module 'blocks.1' gives infinite values");
}

TEST(FirstNonFinite, NamesTheModuleBeforeAnOperationWithoutWeights) {
  Net net;
  const auto x = torch::ones({2, 4});
  EXPECT_EQ(found_in(net, [&] { return torch::sqrt(-net(x)); }),
            "aten::sqrt after module 'blocks.1' gives values that are not numbers");
}

// Attention masks hold -infinity.
TEST(FirstNonFinite, InfinitiesOfAMaskAreNotReported) {
  Net net;
  const auto x = torch::ones({2, 4});
  const auto masked = [&](const torch::Tensor& mask) {
    return found_in(net, [&] { return torch::softmax(net(x).masked_fill(mask, -kInfinity), 1).log(); });
  };
  auto one = torch::zeros({2, 4}, torch::kBool);
  one[0][1] = true;
  EXPECT_EQ(masked(one), "aten::log after module 'blocks.1' gives infinite values") << "the logarithm of 0";
  EXPECT_EQ(masked(torch::ones({2, 4}, torch::kBool)),
            "aten::softmax after module 'blocks.1' gives values that are not numbers")
      << "a row without any value";
  const auto in_place = [&] { return torch::softmax(net(x).masked_fill_(one, -kInfinity).mul_(2), 1); };
  EXPECT_EQ(found_in(net, in_place), "no operation of the forward makes such a value; check the batch");
}

TEST(FirstNonFinite, NamesAnOperationThatWorksInPlace) {
  Net net;
  EXPECT_EQ(found_in(net,
                     [&] {
                       return (-net(torch::ones({2, 4}))).sqrt_();
                     }),
            "aten::sqrt_ after module 'blocks.1' gives values that are not numbers");
}

TEST(FirstNonFinite, NamesAParameter) {
  Net net;
  {
    const torch::NoGradGuard no_grad;
    net->first->bias[2] = kInfinity;
  }
  EXPECT_EQ(found_in(net, [&] { return net(torch::ones({2, 4})); }), "first.bias has infinite values");
}

TEST(FirstNonFinite, SaysThatItFindsNothing) {
  Net net;
  const std::string nothing = "no operation of the forward makes such a value; check the batch";
  EXPECT_EQ(found_in(net, [&] { return net(torch::ones({2, 4})); }), nothing);
  EXPECT_EQ(found_in(net,
                     [&] {
                       return net(torch::full({2, 4}, kInfinity * 0));
                     }),
            nothing)
      << "NaN in the batch";
}

}  // namespace
}  // namespace lockstep
