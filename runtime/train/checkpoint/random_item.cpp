#include <algorithm>
#include <optional>

#include "common/error.h"
#include "runtime/train/checkpoint/items.h"
#include "runtime/train/random_state.h"

namespace lockstep::checkpoint {
namespace {

/// A generator of this process, and its name in the checkpoint.
struct Generator {
  std::string name;
  at::Generator generator;
};

at::Generator cuda_generator(torch::Device device) {
  return train::default_generators(device).at(1);
}

// The device of the rank's modules, else the current one.
torch::Device device_of_rank(const Modules& modules) {
  for (const auto& [name, module] : modules) {
    for (const auto& parameter : module->parameters()) {
      if (parameter.is_cuda()) return parameter.device();
    }
  }
  return torch::kCUDA;
}

// The generator of the rank's own device has a name too, because a resumed job may number devices differently. It
// comes last: its state counts if a device has two.
std::vector<Generator> generators(const Modules& modules) {
  std::vector<Generator> all = {{"cpu", train::default_generators(std::nullopt).at(0)}};
  if (torch::cuda::is_available()) {
    for (int i = 0; i < static_cast<int>(torch::cuda::device_count()); ++i)
      all.push_back(
          {fmt::format("cuda:{}", i), cuda_generator({torch::kCUDA, static_cast<c10::DeviceIndex>(i)})});
    all.push_back({"cuda", cuda_generator(device_of_rank(modules))});
  }
  return all;
}

class RandomItem : public Item {
 public:
  RandomItem(int rank, const Modules& modules) : rank_(static_cast<std::size_t>(rank)), modules_(modules) {}

  std::string type() const override { return "random"; }
  Kind kind() const override { return Kind::per_node; }

  Section save() override {
    Section section;
    for (const Generator& generator : generators(modules_))
      section.tensors.push_back({generator.name, train::state_of(generator.generator)});
    return section;
  }

  void check(const std::vector<Section>& ranks) override {
    const torch::Tensor& saved = tensor_in(ranks.at(0), "cpu");
    const torch::Tensor mine = train::state_of(generators(modules_).at(0).generator);
    if (saved.sizes() != mine.sizes())
      fail("the state of the CPU's random generator is {} in the checkpoint, but {} here", describe(saved),
           describe(mine));
  }

  std::vector<bool> needed(const std::vector<Section>& ranks) override {
    std::vector<bool> needed(ranks.size());
    needed[rank_ % ranks.size()] = true;
    return needed;
  }

  // On more ranks than before, an additional rank gets a seed that is derived from a saved state.
  void load(const std::vector<Section>& ranks) override {
    const Section& saved = ranks.at(rank_ % ranks.size());
    for (const Generator& generator : generators(modules_)) {
      const auto found =
          std::find_if(saved.tensors.begin(), saved.tensors.end(),
                       [&](const NamedTensor& tensor) { return tensor.name == generator.name; });
      if (found != saved.tensors.end()) train::set_state(generator.generator, found->tensor.clone());
    }
    if (rank_ < ranks.size()) return;
    const auto drawn = static_cast<std::uint64_t>(
        torch::randint(std::int64_t{1} << 62, {1}, torch::kInt64).item<std::int64_t>());
    torch::manual_seed(drawn + rank_);
  }

 private:
  std::size_t rank_;
  const Modules& modules_;
};

}  // namespace

ItemPointer random_item(int rank, const Modules& modules) {
  return std::make_unique<RandomItem>(rank, modules);
}

}  // namespace lockstep::checkpoint
