#include "runtime/ddp/seen_tensors.h"
#include "runtime/train/checkpoint/items.h"

namespace lockstep::checkpoint {
namespace {

class ModuleItem : public Item {
 public:
  explicit ModuleItem(torch::nn::Module& module) : module_(module) {}

  std::string type() const override { return "module"; }
  Kind kind() const override { return Kind::replicated; }

  Section save() override { return {.tensors = tensors_of(module_)}; }

  void check(const Section& saved) override {
    check_tensors(tensors_of(module_), saved.tensors, "parameter");
  }

  void load(const Section& saved) override {
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& mine : tensors_of(module_))
      mine.tensor.detach().copy_(tensor_in(saved, mine.name));
  }

 private:
  torch::nn::Module& module_;
};

}  // namespace

std::vector<NamedTensor> tensors_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  SeenTensors seen;
  const auto add = [&](const auto& named) {
    for (const auto& entry : named) {
      if (entry.value().defined() && seen.add(entry.value())) tensors.push_back({entry.key(), entry.value()});
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return tensors;
}

ItemPointer module_item(torch::nn::Module& module) {
  return std::make_unique<ModuleItem>(module);
}

}  // namespace lockstep::checkpoint
