// If a model is changed after DistributedDataParallel was constructed (loaded, converted, extended),
// gradients are still those of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <tuple>

#include "runtime/ddp/reducer.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

/// Layers one after the other, in any number.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(int count = 4) {
    for (int i = 0; i < count; ++i) add();
  }
  void add() {
    layers.push_back(register_module(name_of_layer(layers.size()), torch::nn::Linear(6, 6)));
    layers.back()->to(type);
  }
  void replace(std::size_t i) {
    layers[i] = replace_module(name_of_layer(i), torch::nn::Linear(6, 6));
    layers[i]->to(type);
  }
  void remove_last() {
    layers.pop_back();
    unregister_module(name_of_layer(layers.size()));
  }
  void unregister_last() { unregister_module(name_of_layer(layers.size() - 1)); }
  void convert(torch::ScalarType to_type) {
    type = to_type;
    to(type);
  }
  static std::string name_of_layer(std::size_t i) { return "layer" + std::to_string(i); }

  torch::Tensor forward(const torch::Tensor& input) {
    auto hidden = input.to(type);
    for (auto& layer : layers) hidden = torch::tanh(layer(hidden));
    return scale.defined() ? hidden * scale : hidden;
  }

  torch::ScalarType type = torch::kDouble;
  std::vector<torch::nn::Linear> layers;
  torch::Tensor scale;  // registered later
};
TORCH_MODULE(Stack);

/// Gives ranks different random numbers, so that equal values cannot come from equal seeds.
void seed_ranks_differently() {
  torch::manual_seed(static_cast<std::uint64_t>(world().rank()) + 100);
}

/// Loads another model of the same kind, the same on all ranks.
void load_other_model(Stack& net) {
  torch::manual_seed(5);
  Stack other(static_cast<int>(net->layers.size()));
  other->convert(net->type);
  std::stringstream file;
  torch::save(other, file);
  torch::load(net, file);
}

struct Change {
  const char* name;
  void (*make)(Stack& net);
};

struct Mode {
  const char* name;
  bool by_count = true;
  bool find_unused = false;
  bool static_graph = false;
  bool own_gradients = false;

  DistributedDataParallelOptions options() const {
    auto options = small_buckets();
    options.find_unused_parameters = find_unused;
    options.static_graph = static_graph;
    options.gradient_as_bucket_view = !own_gradients;
    return options;
  }
};

void PrintTo(const Change& change, std::ostream* out) {
  *out << change.name;
}
void PrintTo(const Mode& mode, std::ostream* out) {
  *out << mode.name;
}

std::vector<torch::Tensor> trained(Stack& net) {
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : net->parameters()) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  return parameters;
}

// This rank's part of a step, in `micro_batches` parts; the last one is synchronised.
template <typename Ddp>
void run_step(Ddp& ddp, const Mode& mode, const torch::Tensor& mine, int micro_batches = 1) {
  for (int m = 0; m < micro_batches; ++m) {
    const auto hold = ddp.no_sync_unless(m + 1 == micro_batches);
    const auto part = mine.chunk(micro_batches)[m];
    const auto loss = torch::square(ddp(part) - part).sum();
    if (mode.by_count) {
      ddp.backward(loss, part.size(0));
    } else {
      (loss / mine.size(0)).backward();
    }
  }
}

// Does not accumulate gradients, so DistributedDataParallel's hooks are not called.
std::vector<torch::Tensor> gradients_of_one_process(Stack& net, const torch::Tensor& batch) {
  return torch::autograd::grad({torch::square(net(batch) - batch).sum() / batch.size(0)}, trained(net));
}

torch::Tensor flat(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> parts;
  for (const auto& tensor : tensors) parts.push_back(tensor.detach().reshape({-1}));
  return torch::cat(parts);
}

template <typename Ddp>
void expect_gradients_of_one_process(Ddp& ddp, Stack& net, const Mode& mode, int seed) {
  net->zero_grad();
  const auto batch = rows(12 * world().size(), static_cast<std::uint64_t>(seed));
  run_step(ddp, mode, my_part(batch), 1 + (seed + world().rank()) % 3);
  EXPECT_TRUE(same_bits_everywhere(flat(net->parameters())));
  const auto expected = gradients_of_one_process(net, batch);
  const auto parameters = trained(net);
  std::vector<torch::Tensor> gradients;
  const double tolerance = net->type == torch::kDouble ? 1e-12 : 1e-6;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradient = parameters[i].grad();
    ASSERT_TRUE(gradient.defined());
    EXPECT_EQ(gradient.scalar_type(), net->type);
    EXPECT_EQ(gradient.sizes(), parameters[i].sizes());
    EXPECT_LE((gradient - expected[i]).abs().max().item<double>(), tolerance) << i << " of seed " << seed;
    gradients.push_back(gradient);
  }
  EXPECT_TRUE(same_bits_everywhere(flat(gradients)));
}

class ChangedModel : public ::testing::TestWithParam<std::tuple<Change, Mode>> {};

TEST_P(ChangedModel, IsTrainedAsOnOneProcess) {
  const auto& [change, mode] = GetParam();
  for (const int steps_before : {0, 2}) {
    seed_ranks_differently();
    Stack net;
    DistributedDataParallel ddp(net, world(), mode.options());
    for (int i = 0; i < steps_before; ++i) expect_gradients_of_one_process(ddp, net, mode, i);
    for (int i = 0; i < 2; ++i) {  // changed twice
      seed_ranks_differently();
      change.make(net);
      for (int k = 0; k < 2; ++k) expect_gradients_of_one_process(ddp, net, mode, 10 + 10 * i + k);
    }
    const auto& trace = ddp.trace();
    ASSERT_FALSE(trace.launches.empty());
    EXPECT_LT(trace.launches.front().asked_ns, trace.backward_ended_ns) << "reductions start during backward";
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ChangedModel,
    ::testing::
        Combine(
            ::testing::Values(
                Change{"Loaded", load_other_model},
                Change{"ConvertedToFloat", [](Stack& net) { net->convert(torch::kFloat); }},
                Change{"ConvertedThereAndBack",
                       [](Stack& net) {
                         net->convert(torch::kFloat);
                         net->convert(torch::kDouble);
                       }},
                Change{"GivenOtherStorage",
                       [](Stack& net) {
                         for (auto& parameter : net->parameters())
                           parameter.set_data(torch::randn_like(parameter).detach() / 4);
                       }},
                Change{"GivenAReplacedLayer", [](Stack& net) { net->replace(1); }},
                Change{"GivenAnotherLayer", [](Stack& net) { net->add(); }},
                Change{"WithoutItsLastLayer", [](Stack& net) { net->remove_last(); }},
                Change{
                    "GivenAnotherParameter",
                    [](Stack& net) {
                      if (net->scale.defined()) return;
                      net->scale = net->register_parameter("scale", torch::randn({6}, torch::kDouble));
                    }}),
            ::testing::Values(Mode{.name = "ByCount"}, Mode{.name = "OverRanks", .by_count = false},
                              Mode{.name = "FindUnused", .find_unused = true},
                              Mode{.name = "StaticGraph", .static_graph = true},
                              Mode{.name = "OwnGradients", .own_gradients = true})),
    [](const auto& test) {
      return std::string(std::get<0>(test.param).name) + std::get<1>(test.param).name;
    });

TEST(ChangedModelInAStep, KeepsTheAccumulatedGradients) {
  Stack net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto first = rows(2 * world().size(), 1);
  const auto second = rows(4 * world().size(), 2);
  std::vector<torch::Tensor> expected = gradients_of_one_process(net, first);
  {
    const auto hold = ddp.no_sync();
    run_step(ddp, {.name = ""}, my_part(first));
  }
  load_other_model(net);
  run_step(ddp, {.name = ""}, my_part(second));
  const auto after = gradients_of_one_process(net, second);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto difference = net->parameters()[i].grad() - (expected[i] + 2 * after[i]) / 3;
    EXPECT_LE(difference.abs().max().item<double>(), 1e-12);
  }
}

TEST(ChangedModelInAStep, RefusesTheBackwardOfAForwardBeforeTheChanges) {
  for (const int changes : {1, 2}) {
    Stack net;
    DistributedDataParallel ddp(net, world(), small_buckets());
    const auto input = rows(2, 1);
    const auto before = ddp(input).sum();
    for (int i = 0; i < changes; ++i) {
      net->convert(i == 0 ? torch::kFloat : torch::kDouble);
      ddp(input);
    }
    EXPECT_THAT(error_of([&] { before.backward(); }), HasSubstr("ran before the model was changed"));
  }
}

// Some ranks count the step before the change, the others after it.
TEST(ChangedModelInAStep, MayFollowMicroBatchesOfSomeRanksOnly) {
  Stack net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  const auto input = rows(2, 1);
  const auto step = [&] {
    run_step(ddp, {.name = ""}, input);
    optimizer.step();
    optimizer.zero_grad();
  };
  step();
  if (world().rank() == 0) {
    const auto hold = ddp.no_sync();
    run_step(ddp, {.name = ""}, input);
  }
  load_other_model(net);
  step();
  step();
  EXPECT_TRUE(same_bits_everywhere(flat(net->parameters())));
}

TEST(ChangedModel, InsideJoinIsRefusedByName) {
  Stack net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto input = rows(2, 1);
  EXPECT_THAT(error_of([&] {
                ddp.join([&] {
                  ddp(input).sum().backward();
                  net->add();
                  ddp(input);
                });
              }),
              HasSubstr("the model was changed inside join (parameter 'layer4.weight' was added)"));
}

TEST(ChangedModel, ThatStillUsesAnUnregisteredLayerIsRefusedByTheParametersName) {
  Stack net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto input = rows(2, 1);
  ddp(input).sum().backward();
  net->unregister_last();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(error_of([&] { ddp(input).sum().backward(); }),
                ::testing::AllOf(HasSubstr("parameter 'layer3."), HasSubstr("is no longer registered")));
  }
}

/// Registers its second layer in the first forward.
struct LazyImpl : torch::nn::Module {
  LazyImpl() { first = register_module("first", torch::nn::Linear(6, 6)); }
  torch::Tensor forward(const torch::Tensor& input) {
    if (second.is_empty()) second = register_module("second", torch::nn::Linear(6, 6));
    return second(first(input.to(torch::kFloat)));
  }
  torch::nn::Linear first = nullptr;
  torch::nn::Linear second = nullptr;
};
TORCH_MODULE(Lazy);

TEST(ChangedModel, ByItsOwnForwardIsRefusedByName) {
  Lazy net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto input = rows(2, 1);
  EXPECT_THAT(error_of([&] { ddp(input); }),
              HasSubstr("forward itself changed the model (parameter 'second.weight' was added)"));
  ddp(input).sum().backward();
  EXPECT_TRUE(same_bits_everywhere(net->second->weight.grad()));
}

TEST(ChangedModel, OfAnotherShapeStartsWithoutItsOldGradient) {
  Stack net;
  net->scale = net->register_parameter("scale", torch::ones({1}, torch::kDouble));
  DistributedDataParallel ddp(net, world(), small_buckets());
  expect_gradients_of_one_process(ddp, net, {.name = ""}, 1);
  net->scale.set_data(torch::ones({6}, torch::kDouble));
  expect_gradients_of_one_process(ddp, net, {.name = ""}, 2);
}

TEST(ChangedModel, OfAnotherShapeIsRefusedByNameIfAGradientIsAccumulated) {
  Stack net;
  net->scale = net->register_parameter("scale", torch::ones({1}, torch::kDouble));
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto hold = ddp.no_sync();
  run_step(ddp, {.name = ""}, rows(2, 1));
  net->scale.set_data(torch::ones({6}, torch::kDouble));
  EXPECT_THAT(error_of([&] { ddp(rows(2, 1)); }),
              HasSubstr("parameter 'scale' has another shape than the gradient accumulated for it"));
}

TEST(ChangedModel, OfAnotherShapeIsRefusedOnEveryRankIfOneHasAccumulated) {
  if (world().size() == 1) GTEST_SKIP() << "needs 2 ranks";
  Stack net;
  net->scale = net->register_parameter("scale", torch::ones({1}, torch::kDouble));
  DistributedDataParallel ddp(net, world(), small_buckets());
  run_step(ddp, {.name = ""}, rows(2, 1));
  net->zero_grad();
  const auto hold = ddp.no_sync();
  if (world().rank() == 0) run_step(ddp, {.name = ""}, rows(2, 1));
  net->scale.set_data(torch::ones({6}, torch::kDouble));
  EXPECT_THAT(
      error_of([&] { ddp(rows(2, 1)); }),
      HasSubstr("'scale' Double [6] (with a gradient accumulated in another shape) on rank 0 and 'scale'"));
}

TEST(ChangedModel, OnAnotherDeviceIsRefusedByName) {
  Stack net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  net->register_parameter("far", torch::empty({2}, torch::kMeta));
  EXPECT_THAT(error_of([&] { ddp(rows(2, 1)); }), HasSubstr("parameter 'far' is on meta"));
}

TEST(ChangedModel, ThatDiffersBetweenRanksIsRefusedOnEveryRankByName) {
  if (world().size() == 1) GTEST_SKIP() << "needs 2 ranks";
  Stack net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const bool first = world().rank() == 0;
  net->register_parameter("scale", torch::ones({first ? 2 : 3}, torch::kDouble));
  EXPECT_THAT(
      error_of([&] { ddp(rows(2, 1)); }),
      HasSubstr(
          "parameter 0 is 'scale' Double [2] on rank 0 and 'scale' Double [3] on rank 1; change the model in the same way"));
}

TEST(ChangedModel, IsNoticedOnlyIfGradientsAreRecorded) {
  Stack net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto batch = rows(2, 3);
  run_step(ddp, {.name = ""}, batch);
  if (world().rank() == 0) {  // one rank evaluates with other parameters, and then restores its own
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> own;
    for (auto& parameter : net->parameters()) {
      own.push_back(parameter.detach());
      parameter.set_data(torch::zeros_like(parameter));
    }
    ddp(batch);
    for (std::size_t i = 0; i < own.size(); ++i) net->parameters()[i].set_data(own[i]);
  }
  expect_gradients_of_one_process(ddp, net, {.name = ""}, 1);
}

TEST(FrozenParameters, AreTrainedOnceTheyAreUnfrozen) {
  seed_ranks_differently();
  Stack net;
  net->layers[0]->weight.set_requires_grad(false);
  DistributedDataParallel ddp(net, world(), small_buckets());
  for (int i = 0; i < 2; ++i) expect_gradients_of_one_process(ddp, net, {.name = ""}, i);
  net->layers[0]->weight.set_requires_grad(true);
  for (int i = 2; i < 5; ++i) expect_gradients_of_one_process(ddp, net, {.name = ""}, i);
}

TEST(FrozenParameters, ThatWereTrainedBeforeAreRefusedByName) {
  for (const bool static_graph : {false, true}) {
    Stack net;
    auto options = small_buckets();
    options.static_graph = static_graph;
    DistributedDataParallel ddp(net, world(), options);
    const auto input = rows(2, 1);
    ddp(input).sum().backward();
    net->layers[1]->weight.set_requires_grad(false);
    EXPECT_THAT(error_of([&] { ddp(input).sum().backward(); }),
                HasSubstr("parameter 'layer1.weight' was frozen after DistributedDataParallel was constr"));
  }
}

// One of two adversarial models is frozen during the other one's step.
TEST(FrozenParameters, MayBeFrozenForStepsOfAnotherModel) {
  Stack net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const Mode mode{.name = "", .by_count = false};
  for (int i = 0; i < 3; ++i) {
    expect_gradients_of_one_process(ddp, net, mode, i);
    for (auto& parameter : net->parameters()) parameter.set_requires_grad(false);
    auto input = rows(2, 1).requires_grad_(true);
    ddp(input).sum().backward();
    EXPECT_TRUE(input.grad().defined());
    for (auto& parameter : net->parameters()) parameter.set_requires_grad(true);
  }
}

}  // namespace
}  // namespace lockstep::testing
