#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <algorithm>
#include <mutex>

#include "common/error.h"
#include "runtime/train/checkpoint/items.h"

namespace lockstep::checkpoint {
namespace {

/// A generator of this process, and its name in the checkpoint.
struct Generator {
  std::string name;
  at::Generator generator;
};

torch::Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

std::vector<Generator> generators() {
  std::vector<Generator> all = {{"cpu", at::detail::getDefaultCPUGenerator()}};
  if (torch::cuda::is_available()) {
    for (int i = 0; i < static_cast<int>(torch::cuda::device_count()); ++i) {
      const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(i));
      all.push_back({fmt::format("cuda:{}", i), at::globalContext().defaultGenerator(device)});
    }
  }
  return all;
}

class RandomItem : public Item {
 public:
  explicit RandomItem(int rank) : rank_(static_cast<std::size_t>(rank)) {}

  std::string type() const override { return "random"; }
  Kind kind() const override { return Kind::per_rank; }

  Section save() override {
    Section section;
    for (const Generator& generator : generators())
      section.tensors.push_back({generator.name, state_of(generator.generator)});
    return section;
  }

  void check(const std::vector<Section>& ranks) override {
    const torch::Tensor& saved = tensor_in(ranks.at(0), "cpu");
    const torch::Tensor mine = state_of(generators().at(0).generator);
    if (saved.sizes() != mine.sizes())
      fail("the state of the CPU's random generator is {} in the checkpoint, but {} here", describe(saved),
           describe(mine));
  }

  // On more ranks than before, a further rank starts a sequence of its own that follows from a saved state.
  void load(const std::vector<Section>& ranks) override {
    const Section& saved = ranks.at(rank_ % ranks.size());
    for (Generator& generator : generators()) {
      const auto found =
          std::find_if(saved.tensors.begin(), saved.tensors.end(),
                       [&](const NamedTensor& tensor) { return tensor.name == generator.name; });
      if (found == saved.tensors.end()) continue;
      const std::lock_guard<std::mutex> lock(generator.generator.mutex());
      generator.generator.set_state(found->tensor.clone());
    }
    if (rank_ < ranks.size()) return;
    const auto drawn = static_cast<std::uint64_t>(
        torch::randint(std::int64_t{1} << 62, {1}, torch::kInt64).item<std::int64_t>());
    torch::manual_seed(drawn + rank_);
  }

 private:
  std::size_t rank_;
};

}  // namespace

ItemPointer random_item(int rank) {
  return std::make_unique<RandomItem>(rank);
}

}  // namespace lockstep::checkpoint
