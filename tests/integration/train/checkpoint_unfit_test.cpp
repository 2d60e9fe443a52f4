// A checkpoint that does not fit is refused, naming the first difference, and nothing is changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/files.h"
#include "runtime/train/checkpoint/manifest.h"
#include "tests/integration/train/checkpoint_world.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

/// What load_latest() throws for these objects; nothing may have changed.
class Unfit : public ::testing::Test {
 protected:
  Unfit() {
    Net net;
    torch::optim::AdamW optimizer(net->parameters(), kDecayingAdamW);
    std::int64_t tokens = 7;
    Checkpointer checkpointer(world(), folder_ / "run");
    checkpointer.add("model", *net);
    checkpointer.add("optimizer", optimizer);
    checkpointer.add("tokens", tokens);
    checkpointer.save(1);
    checkpointer.wait();
  }

  template <typename Module, typename Optimizer, typename... Values>
  std::string refusal(Module& module, Optimizer& optimizer, [[maybe_unused]] const char* name,
                      Values&... values) {
    const auto copy = [&] {
      std::vector<torch::Tensor> all;
      for (const auto& parameter : module->parameters()) all.push_back(parameter.detach().clone());
      return all;
    };
    const auto before = copy();
    Checkpointer checkpointer(world(), folder_ / "run");
    checkpointer.add("model", *module);
    checkpointer.add("optimizer", optimizer);
    (checkpointer.add(name, values), ...);
    const std::string error = error_of([&] { checkpointer.load_latest(); });
    const auto after = copy();
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(same_bits(before[i], after[i]));
    EXPECT_THAT(error, HasSubstr("cannot resume from " + (folder_ / "run/step-000001").string()));
    return error;
  }

  SharedFolder folder_;
  std::int64_t tokens_ = 0;
};

TEST_F(Unfit, AShapeThatDiffersIsNamed) {
  Net wider(9);
  torch::optim::AdamW optimizer(wider->parameters(), kDecayingAdamW);
  EXPECT_THAT(
      refusal(wider, optimizer, "tokens", tokens_),
      HasSubstr("parameter 'last.weight' is Double [8, 8] in the checkpoint, but Double [9, 9] here"));
}

TEST_F(Unfit, AShapeOfAParameterOutsideModulesIsNamed) {
  const SharedFolder folder;
  const auto optimizer_of = [](std::int64_t size) {
    return torch::optim::SGD({torch::zeros({size})}, torch::optim::SGDOptions(0.1));
  };
  {
    auto saved = optimizer_of(2);
    Checkpointer checkpointer(world(), folder / "run");
    checkpointer.add("optimizer", saved);
    checkpointer.save(1);
    checkpointer.wait();
  }
  auto longer = optimizer_of(3);
  Checkpointer checkpointer(world(), folder / "run");
  checkpointer.add("optimizer", longer);
  EXPECT_THAT(error_of([&] { checkpointer.load_latest(); }),
              HasSubstr("'group 0 parameter 0' is Float [2] in the checkpoint, but Float [3] here"));
}

TEST_F(Unfit, ATypeThatDiffersIsNamed) {
  Net single;
  single->to(torch::kFloat);
  torch::optim::AdamW optimizer(single->parameters(), kDecayingAdamW);
  EXPECT_THAT(refusal(single, optimizer, "tokens", tokens_),
              HasSubstr("is Double [6] in the checkpoint, but Float [6]"));
}

TEST_F(Unfit, AParameterThatIsOnlyHereOrThereIsNamed) {
  Net more;
  more->register_parameter("extra", torch::zeros({2}, torch::kDouble));
  torch::optim::AdamW optimizer(more->parameters(), kDecayingAdamW);
  EXPECT_THAT(refusal(more, optimizer, "tokens", tokens_),
              HasSubstr("the checkpoint has no parameter 'extra'"));
  torch::nn::Sequential fewer;
  fewer->push_back("last", torch::nn::Linear(8, 8));
  fewer->to(torch::kDouble);
  torch::optim::AdamW small(fewer->parameters(), kDecayingAdamW);
  EXPECT_THAT(refusal(fewer, small, "tokens", tokens_), HasSubstr("which does not exist here"));
}

TEST_F(Unfit, AnotherOptimizerOrOtherGroupsAreNamed) {
  Net net;
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
  EXPECT_THAT(refusal(net, adam, "tokens", tokens_),
              HasSubstr("the optimizer is AdamW in the checkpoint, but Adam here"));
  torch::optim::AdamW grouped(decay_groups(*net, kDecayingAdamW));
  EXPECT_THAT(refusal(net, grouped, "tokens", tokens_),
              HasSubstr("has 1 groups of parameters in the checkpoint, but 2 here"));
  auto parameters = net->parameters();
  std::reverse(parameters.begin(), parameters.end());
  torch::optim::AdamW reversed(parameters, kDecayingAdamW);
  EXPECT_THAT(refusal(net, reversed, "tokens", tokens_),
              HasSubstr("parameter 0 of the optimizer's group 0 is 'out_bias'"));
  parameters = net->parameters();
  parameters.pop_back();
  torch::optim::AdamW shorter(parameters, kDecayingAdamW);
  EXPECT_THAT(refusal(net, shorter, "tokens", tokens_), HasSubstr("is only in the checkpoint"));
}

TEST_F(Unfit, AnObjectThatIsOnlyHereOrThereIsNamed) {
  Net net;
  torch::optim::AdamW optimizer(net->parameters(), kDecayingAdamW);
  EXPECT_THAT(refusal(net, optimizer, "samples", tokens_),
              HasSubstr("it has no 'samples', which this program added"));
  double number = 0;
  EXPECT_THAT(refusal(net, optimizer, "tokens", number),
              HasSubstr("'tokens' is of type integer in the checkpoint, but number here"));
  const std::string extra = refusal<Net, torch::optim::AdamW>(net, optimizer, "");
  EXPECT_THAT(extra, HasSubstr("it has 'tokens', which this program did not add"));
}

struct Data {
  void save(torch::serialize::OutputArchive& archive) const {
    archive.write("state", c10::IValue(std::string("old data")));
  }
  void load(torch::serialize::InputArchive& /*archive*/) {}
};

struct OtherData {
  void save(torch::serialize::OutputArchive& /*archive*/) const {}
  void load(torch::serialize::InputArchive& archive) {
    c10::IValue saved;
    archive.read("state", saved);
    fail("other data: {}", saved.toStringRef());
  }
};

TEST_F(Unfit, AStateThatAnObjectRefusesChangesNothing) {
  const SharedFolder folder;
  Net net;
  Data saved;
  {
    Checkpointer checkpointer(world(), folder / "run");
    checkpointer.add("model", *net);
    checkpointer.add("data", saved);
    checkpointer.save(1);
    checkpointer.wait();
  }
  Net other;
  const auto before = other->out_bias.detach().clone();
  Checkpointer checkpointer(world(), folder / "run");
  checkpointer.add("model", *other);
  OtherData data;
  checkpointer.add("data", data);
  EXPECT_THAT(error_of([&] { checkpointer.load_latest(); }), HasSubstr("other data: old data"));
  EXPECT_TRUE(same_bits(before, other->out_bias));
}

TEST_F(Unfit, AnotherFormatVersionIsRefused) {
  const auto path = folder_ / "run/step-000001" / checkpoint::kManifestName;
  if (world().rank() == 0) {
    std::string text = read_text_file(path);
    const std::string version = "\"format\": 2";
    write_file_atomically(path, text.replace(text.find(version), version.size(), "\"format\": 9"));
  }
  Net net;
  torch::optim::AdamW optimizer(net->parameters(), kDecayingAdamW);
  EXPECT_THAT(refusal(net, optimizer, "tokens", tokens_), HasSubstr("format version 9"));
}

}  // namespace
}  // namespace lockstep::testing
