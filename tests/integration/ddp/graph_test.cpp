// DistributedDataParallel with unusual autograd graphs: backwards inside backward, outputs of many types,
// parameters that are used several times, sometimes or never.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "runtime/ddp/reducer.h"
#include "tests/integration/ddp/checkpoint.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {

/// The result of a detector.
struct Detections {
  torch::Tensor boxes;
  torch::Tensor scores;
};

/// A result type without a specialisation of OutputTensors.
struct Opaque {
  torch::Tensor tensor;
};

}  // namespace lockstep::testing

template <>
struct lockstep::OutputTensors<lockstep::testing::Detections> {
  static constexpr bool known = true;
  static void collect(const lockstep::testing::Detections& output, std::vector<torch::Tensor>& tensors) {
    tensors.push_back(output.boxes);
    tensors.push_back(output.scores);
  }
};

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

/// `twice` is used in two nested checkpoints, and once outside of them.
struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(bool checkpoints = true) : recompute(checkpoints) {
    first = register_module("first", torch::nn::Linear(6, 6));
    twice = register_module("twice", torch::nn::Linear(6, 6));
    inner = register_module("inner", torch::nn::Linear(6, 6));
    last = register_module("last", torch::nn::Linear(6, 6));
    to(torch::kDouble);
    inner_segment = [this](const torch::Tensor& x) { return torch::tanh(inner(torch::tanh(twice(x)))); };
    outer_segment = [this](const torch::Tensor& x) { return run(inner_segment, torch::tanh(twice(x))); };
  }
  torch::Tensor run(const Segment& segment, const torch::Tensor& x) const {
    return recompute ? Checkpoint::apply(x, &segment) : segment(x);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    auto hidden = run(outer_segment, torch::tanh(first(input)));
    hidden = run(outer_segment, hidden) + twice(hidden);
    return run(outer_segment, last(hidden));  // the gradients of this one come first
  }

  bool recompute;
  torch::nn::Linear first = nullptr;
  torch::nn::Linear twice = nullptr;
  torch::nn::Linear inner = nullptr;
  torch::nn::Linear last = nullptr;
  Segment inner_segment;
  Segment outer_segment;
};
TORCH_MODULE(Deep);

template <typename Options>
void check_deep(const Options& options, bool user_calls_backward) {
  Deep net(true);
  DistributedDataParallel ddp(net, world(), options);
  Deep alone(false);
  copy_parameters(*net, *alone);
  for (int step = 0; step < 4; ++step) {
    const auto input = rows(3 * world().size(), 40 + static_cast<std::uint64_t>(step));
    const auto loss = torch::mse_loss(ddp(my_part(input)), my_part(input));
    if (user_calls_backward) {
      loss.backward();
    } else {
      ddp.backward(loss);
    }
    torch::mse_loss(alone(input), input).backward();
    EXPECT_LE(gradient_difference(*net, *alone), 1e-12) << "step " << step;
    const auto& trace = ddp.trace();
    ASSERT_GT(trace.launches.size(), 2U);
    if (step > 0) {
      EXPECT_LT(trace.launches.front().asked_ns, trace.backward_ended_ns);
    }
    if (step == 1) {
      set_gradients_to_none(*net);
    } else {
      net->zero_grad();
    }
    alone->zero_grad();
  }
}

TEST(Checkpointing, GivesTheGradientsOfOneProcess) {
  for (const bool user_calls_backward : {false, true}) check_deep(small_buckets(), user_calls_backward);
  auto static_graph = small_buckets();
  static_graph.static_graph = true;
  check_deep(static_graph, true);
  auto separate_gradients = small_buckets();
  separate_gradients.gradient_as_bucket_view = false;
  check_deep(separate_gradients, true);
}

TEST(Checkpointing, WithFindUnusedParametersIsRefusedWithARemedy) {
  Deep net;
  auto options = small_buckets();
  options.find_unused_parameters = true;
  options.bucket_cap_mb = 1e-6;  // one parameter per bucket: in larger buckets the gradient would be in time
  DistributedDataParallel ddp(net, world(), options);
  const auto input = rows(2, 3);
  ddp(input).sum().backward();
  EXPECT_THAT(error_of([&] { ddp(input).sum().backward(); }), HasSubstr("set static_graph instead"));
}

/// Packs two tensors into an output with the given function. The second tensor is from a checkpoint, so the
/// first gradient arrives in a backward inside backward.
template <typename Pack>
struct Packing : torch::nn::Module {
  explicit Packing(Pack how) : pack(std::move(how)) {
    left = register_module("left", torch::nn::Linear(6, 6));
    right = register_module("right", torch::nn::Linear(6, 6));
    to(torch::kDouble);
    segment = [this](const torch::Tensor& x) { return torch::tanh(left(x)); };
  }
  auto forward(const torch::Tensor& input) {
    const auto first = right(torch::tanh(left(input)));
    return pack(first, Checkpoint::apply(first, &segment));
  }
  torch::nn::Linear left = nullptr;
  torch::nn::Linear right = nullptr;
  Segment segment;
  Pack pack;
};

// Calls backward on the second tensor in the output. If finish() ran at the end of the inner backward, with
// the first gradient, it would miss the gradients of `right`.
template <typename Pack, typename Unpack>
void check_output(Pack pack, Unpack second_of) {
  auto net = std::make_shared<Packing<Pack>>(pack);
  DistributedDataParallel ddp(net, world(), small_buckets());
  for (int step = 0; step < 3; ++step) {
    const auto input = rows(2 * world().size(), 7);
    second_of(ddp(my_part(input))).square().mean().backward();
    const auto gradient = net->left->weight.grad().clone();
    EXPECT_TRUE(same_bits_everywhere(gradient));
    net->zero_grad();
    {
      const auto hold = ddp.no_sync();
      second_of(ddp(input)).square().mean().backward();
    }
    EXPECT_LE((net->left->weight.grad() - gradient).abs().max().template item<double>(), 1e-12);
    net->zero_grad();
  }
}

TEST(Outputs, OfManyTypesAreSearchedForTensors) {
  using torch::Tensor;
  check_output(
      [](const Tensor& a, const Tensor& b) {
        return std::vector<Tensor>{a, b};
      },
      [](const auto& output) { return output[1]; });
  check_output([](const Tensor& a, const Tensor& b) { return std::make_tuple(a.detach(), b, 3); },
               [](const auto& output) { return std::get<1>(output); });
  check_output(
      [](const Tensor& a, const Tensor& b) {
        return std::array<Tensor, 2>{a, b};
      },
      [](const auto& output) { return output[1]; });
  check_output(
      [](const Tensor& a, const Tensor& b) {
        return std::map<std::string, Tensor>{{"a", a}, {"b", b}};
      },
      [](const auto& output) { return output.at("b"); });
  check_output(
      [](const Tensor& a, const Tensor& b) {
        c10::Dict<std::string, Tensor> named;
        named.insert("a", a);
        named.insert("b", b);
        return named;
      },
      [](const auto& output) { return output.at("b"); });
  check_output(
      [](const Tensor& a, const Tensor& b) {
        return c10::List<Tensor>{a, b};
      },
      [](const auto& output) { return Tensor(output.get(1)); });
  check_output(
      [](const Tensor& a, const Tensor& b) {
        return std::make_pair(std::optional<Tensor>(), std::vector<std::tuple<Tensor, Tensor>>{{a, b}});
      },
      [](const auto& output) { return std::get<1>(output.second[0]); });
  check_output(
      [](const Tensor& a, const Tensor& b) {
        return Detections{a, b};
      },
      [](const auto& output) { return output.scores; });
}

/// Returns its parameter together with the result.
struct OpenImpl : torch::nn::Module {
  OpenImpl() { scale = register_parameter("scale", torch::ones({6}, torch::kDouble)); }
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& input) {
    return {input * scale, scale};
  }
  torch::Tensor scale;
};
TORCH_MODULE(Open);

TEST(Outputs, ThatAreParametersCollectNoHooks) {
  Open net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  for (int step = 0; step < 3; ++step) {
    const auto [output, scale] = ddp(rows(2, static_cast<std::uint64_t>(step + world().rank())));
    (output.sum() + scale.sum()).backward();
    EXPECT_TRUE(same_bits_everywhere(net->scale.grad()));
    net->zero_grad();
  }
  EXPECT_EQ(net->scale.register_hook([](const torch::Tensor&) {}), 0U) << "the first hook of this tensor";
}

TEST(Outputs, OfUnknownTypesWorkWithDdpBackward) {
  const auto pack = [](const torch::Tensor& /*a*/, const torch::Tensor& b) { return Opaque{b}; };
  auto net = std::make_shared<Packing<decltype(pack)>>(pack);
  auto options = small_buckets();
  {
    DistributedDataParallel ddp(net, world(), options);
    ddp.backward(ddp(rows(2, 1 + static_cast<std::uint64_t>(world().rank()))).tensor.sum());
    EXPECT_TRUE(same_bits_everywhere(net->left->weight.grad()));
  }
  options.find_unused_parameters = true;
  DistributedDataParallel ddp(net, world(), options);
  EXPECT_THAT(error_of([&] { ddp(rows(2, 1)); }), HasSubstr("specialise lockstep::OutputTensors"));
}

TEST(GradientsOfGradients, ThatAccumulateNothingAreAllowed) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  Net alone = copy_of(net);
  const auto input = rows(2, 5).requires_grad_(true);
  for (int step = 0; step < 2; ++step) {
    const auto penalised = [&](auto& model) {
      const auto output = model(input);
      const auto slope = torch::autograd::grad({output.sum()}, {input}, {}, true, true)[0];
      return torch::mse_loss(output, input.detach()) + slope.square().mean();
    };
    penalised(ddp).backward();
    penalised(alone).backward();
    EXPECT_LE(gradient_difference(*net, *alone), 1e-12);
    net->zero_grad();
    alone->zero_grad();
  }
}

/// Ranks use different branches, and another one in the next step. No rank uses `never`.
struct SharedBranchesImpl : torch::nn::Module {
  SharedBranchesImpl() {
    common = register_module("common", torch::nn::Linear(6, 6));
    left = register_module("left", torch::nn::Linear(6, 6));
    right = register_module("right", torch::nn::Linear(6, 6));
    never =
        register_module("never", torch::nn::Linear(6, 6));  // registered last, so it is in the first bucket
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& input, bool use_left) {
    const auto hidden = torch::tanh(common(input));
    return use_left ? left(hidden) : right(hidden);
  }
  torch::nn::Linear left = nullptr;
  torch::nn::Linear right = nullptr;
  torch::nn::Linear never = nullptr;
  torch::nn::Linear common = nullptr;
};
TORCH_MODULE(SharedBranches);

// Expects the mean over ranks of the gradients of each rank's branch.
void check_branches(const DistributedDataParallelOptions& options, bool static_choice) {
  SharedBranches net;
  DistributedDataParallel ddp(net, world(), options);
  SharedBranches alone;
  copy_parameters(*net, *alone);
  for (int step = 0; step < 4; ++step) {
    const auto uses_left = [&](int rank) { return (rank + (static_choice ? 0 : step)) % 2 == 0; };
    const auto input = rows(2 * world().size(), 60 + static_cast<std::uint64_t>(step));
    torch::mse_loss(ddp(my_part(input), uses_left(world().rank())), my_part(input)).backward();
    torch::Tensor whole = torch::zeros({}, torch::kDouble);
    for (int rank = 0; rank < world().size(); ++rank) {
      const auto part = input.chunk(world().size())[rank];
      whole = whole + torch::mse_loss(alone(part, uses_left(rank)), part) / world().size();
    }
    whole.backward();
    for (std::size_t i = 0; i < net->parameters().size(); ++i) {
      const auto ours = net->parameters()[i].grad();
      const auto theirs = alone->parameters()[i].grad();
      ASSERT_EQ(ours.defined(), theirs.defined())
          << "optimizers must not change a parameter that no rank used";
      if (ours.defined()) {
        EXPECT_LE((ours - theirs).abs().max().item<double>(), 1e-12) << "step " << step;
      }
    }
    if (step > 0) {  // the first bucket is ready before backward
      EXPECT_LT(ddp.trace().launches.front().asked_ns, ddp.trace().backward_ended_ns);
    }
    set_gradients_to_none(*net);
    set_gradients_to_none(*alone);
  }
}

TEST(ControlFlow, MayDifferBetweenRanksAndSteps) {
  for (const bool as_view : {true, false}) {
    auto options = small_buckets();
    options.find_unused_parameters = true;
    options.gradient_as_bucket_view = as_view;
    check_branches(options, false);
  }
}

// One backward of two forwards: the first ran under no_sync, the second uses fewer parameters.
TEST(ControlFlow, OfAForwardUnderNoSyncCountsInACommonBackward) {
  auto options = small_buckets();
  options.find_unused_parameters = true;
  options.first_bucket_bytes = 1;  // one parameter each
  options.bucket_cap_mb = 1e-6;
  SharedBranches net;
  DistributedDataParallel ddp(net, world(), options);
  SharedBranches alone;
  copy_parameters(*net, *alone);
  for (int step = 0; step < 3; ++step) {
    const auto input = rows(2 * world().size(), 90 + static_cast<std::uint64_t>(step));
    torch::Tensor first;
    {
      const auto hold = ddp.no_sync();
      first = ddp(my_part(input), true).square().mean();
    }
    (first + ddp(my_part(input), false).square().mean()).backward();
    (alone(input, true).square().mean() + alone(input, false).square().mean()).backward();
    for (const auto* name : {"left.weight", "right.weight", "common.weight"}) {
      const auto difference = net->named_parameters()[name].grad() - alone->named_parameters()[name].grad();
      EXPECT_LE(difference.abs().max().item<double>(), 1e-12) << name << " in step " << step;
    }
    EXPECT_FALSE(net->never->weight.grad().defined());
    set_gradients_to_none(*net);
    set_gradients_to_none(*alone);
  }
}

TEST(StaticGraph, LearnsUnusedParametersInTheFirstStep) {
  auto options = small_buckets();
  options.static_graph = true;
  check_branches(options, true);
}

TEST(Buckets, FollowTheGradientsAndHaveUnusedParametersLast) {
  for (const bool is_static : {true, false}) {
    SharedBranches net;
    auto options = small_buckets();
    options.static_graph = is_static;
    options.find_unused_parameters = !is_static;
    DistributedDataParallel ddp(net, world(), options);
    // Those of rank 0: the other ranks' arrive in another order.
    for (int step = 0; step < 2; ++step) ddp(rows(2, 1), world().rank() == 0).sum().backward();
    EXPECT_THAT(ddp.reducer().layout().front(), ::testing::Contains("left.weight"));
    EXPECT_THAT(ddp.reducer().layout().back(), ::testing::Contains("never.bias"));
  }
}

TEST(StaticGraph, ThatChangesIsRefusedByName) {
  SharedBranches net;
  auto options = small_buckets();
  options.static_graph = true;
  DistributedDataParallel ddp(net, world(), options);
  ddp(rows(2, 1), true).sum().backward();
  EXPECT_THAT(error_of([&] { ddp(rows(2, 1), false).sum().backward(); }),
              ::testing::ContainsRegex("parameter '(left|right).*got [01] gradients.*and [01] in the first"));
}

TEST(StaticGraph, ThatLosesAParameterIsRefusedByName) {
  SharedBranches net;
  auto options = small_buckets();
  options.static_graph = true;
  DistributedDataParallel ddp(net, world(), options);
  ddp(rows(2, 1), true).sum().backward();
  EXPECT_THAT(error_of([&] { net->common(rows(2, 1)).sum().backward(); }),
              HasSubstr("parameter 'left.weight' got 0 gradients in this backward and 1 in the first one"));
}

TEST(StaticGraph, IsLearnedByRanksThatSkipTheFirstStep) {
  SharedBranches net;
  auto options = small_buckets();
  options.static_graph = true;
  DistributedDataParallel ddp(net, world(), options);
  for (int step = 0; step < 3; ++step) {
    if (step == 0 && world().rank() == 0 && world().size() > 1) {
      ddp.skip();
    } else {
      ddp.backward(ddp(rows(1, 1), true).sum(), 1);
    }
    EXPECT_TRUE(same_bits_everywhere(net->left->weight.grad()));
    EXPECT_FALSE(net->never->weight.grad().defined());
    set_gradients_to_none(*net);
  }
  EXPECT_THAT(ddp.reducer().layout().front(), ::testing::Contains("left.weight")) << "of a later step";
}

TEST(SeparateGradients, StayTheSameTensors) {
  Net net;
  auto options = small_buckets();
  options.gradient_as_bucket_view = false;
  DistributedDataParallel ddp(net, world(), options);
  Net alone = copy_of(net);
  auto mine = torch::zeros_like(net->out_bias);
  net->out_bias.mutable_grad() = mine;
  for (int step = 0; step < 3; ++step) {
    const auto input = rows(2 * world().size(), 80 + static_cast<std::uint64_t>(step));
    {
      const auto hold = ddp.no_sync();
      torch::mse_loss(ddp(my_part(input)), my_part(input)).backward();
    }
    torch::mse_loss(ddp(my_part(input)), my_part(input)).backward();
    (2 * torch::mse_loss(alone(input), input)).backward();
    EXPECT_LE(gradient_difference(*net, *alone), 1e-12) << "step " << step;
    EXPECT_TRUE(net->out_bias.grad().is_same(mine));
    for (auto& parameter : net->parameters()) parameter.mutable_grad().zero_();
    alone->zero_grad();
  }
}

}  // namespace
}  // namespace lockstep::testing
