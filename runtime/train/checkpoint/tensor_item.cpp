// Items that are tensors.

#include "common/error.h"
#include "runtime/train/checkpoint/items.h"
#include "runtime/train/weight_average.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kValue = "value";

class TensorItem : public Item {
 public:
  explicit TensorItem(torch::Tensor& tensor) : tensor_(tensor) {}

  std::string type() const override { return "tensor"; }
  Kind kind() const override { return Kind::small; }

  Section save() override {
    if (!tensor_.defined()) fail_usage("a checkpoint cannot hold an undefined tensor");
    return {.tensors = {{kValue, tensor_}}};
  }

  void check(const std::vector<Section>& ranks) override {
    const torch::Tensor& saved = tensor_in(ranks.at(0), kValue);
    if (!tensor_.defined()) return;
    if (saved.sizes() != tensor_.sizes() || saved.scalar_type() != tensor_.scalar_type())
      fail("it is {} in the checkpoint, but {} here", describe(saved), describe(tensor_));
  }

  void load(const std::vector<Section>& ranks) override {
    const torch::NoGradGuard no_grad;
    const torch::Tensor& saved = tensor_in(ranks.at(0), kValue);
    if (tensor_.defined()) {
      tensor_.detach().copy_(saved);
    } else {
      tensor_ = saved.clone();
    }
  }

 private:
  torch::Tensor& tensor_;
};

}  // namespace

class AverageItem : public Item {
 public:
  explicit AverageItem(WeightAverage& average) : average_(average) {}

  std::string type() const override { return "weight_average"; }
  Kind kind() const override { return Kind::replicated; }

  Section save() override {
    average_.refuse_swapped("Checkpointer::save()");
    Section section{.tensors = tensors()};
    section.values["updates"] = average_.updates();
    return section;
  }

  void check(const std::vector<Section>& ranks) override {
    average_.refuse_swapped("Checkpointer::load_latest()");
    check_tensors(tensors(), ranks.at(0).tensors, "average");
  }

  void load(const std::vector<Section>& ranks) override {
    std::vector<torch::Tensor> averages;
    for (const NamedTensor& mine : tensors()) averages.push_back(tensor_in(ranks.at(0), mine.name));
    average_.set_state(averages, ranks.at(0).values.at("updates"));
  }

 private:
  std::vector<NamedTensor> tensors() const {
    std::vector<NamedTensor> tensors;
    for (const auto& average : average_.averages())
      tensors.push_back({std::to_string(tensors.size()), average});
    return tensors;
  }

  WeightAverage& average_;
};

ItemPointer value_item(torch::Tensor& tensor) {
  return std::make_unique<TensorItem>(tensor);
}

ItemPointer average_item(WeightAverage& average) {
  return std::make_unique<AverageItem>(average);
}

}  // namespace lockstep::checkpoint
