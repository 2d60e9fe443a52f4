// Items that are tensors, and texts, which are stored as bytes.

#include <algorithm>
#include <utility>

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

class TextItem : public Item {
 public:
  TextItem(std::function<std::string()> save, std::function<void(const std::string&)> load)
      : save_(std::move(save)), load_(std::move(load)) {}

  std::string type() const override { return "text"; }
  Kind kind() const override { return Kind::small; }
  Order order() const override { return Order::refusing; }

  Section save() override {
    const std::string text = save_();
    const auto bytes = torch::empty({static_cast<std::int64_t>(text.size())}, torch::kUInt8);
    std::copy(text.begin(), text.end(), bytes.data_ptr<std::uint8_t>());
    return {.tensors = {{kValue, bytes}}};
  }

  void check(const std::vector<Section>& ranks) override {
    if (tensor_in(ranks.at(0), kValue).scalar_type() != torch::kUInt8)
      fail("it is not a text in the checkpoint");
  }

  void load(const std::vector<Section>& ranks) override {
    const torch::Tensor bytes = tensor_in(ranks.at(0), kValue).contiguous();
    const auto* const data = bytes.data_ptr<std::uint8_t>();
    load_(std::string(data, data + bytes.numel()));
  }

 private:
  std::function<std::string()> save_;
  std::function<void(const std::string&)> load_;
};

class AverageItem : public Item {
 public:
  explicit AverageItem(WeightAverage& average) : average_(average) {}

  std::string type() const override { return "weight_average"; }
  Kind kind() const override { return Kind::replicated; }

  Section save() override {
    refuse_swapped("save()");
    Section section{.tensors = tensors()};
    section.values["updates"] = average_.updates();
    return section;
  }

  void check(const std::vector<Section>& ranks) override {
    refuse_swapped("load_latest()");
    check_tensors(tensors(), ranks.at(0).tensors, "average");
  }

  void load(const std::vector<Section>& ranks) override {
    std::vector<torch::Tensor> averages;
    for (const NamedTensor& mine : tensors()) averages.push_back(tensor_in(ranks.at(0), mine.name));
    average_.set_state(averages, ranks.at(0).values.at("updates"));
  }

 private:
  void refuse_swapped(const char* before) const {
    if (average_.swapped())
      fail_usage("Checkpointer: the module has the averages; end the swap() scope before {}", before);
  }

  std::vector<NamedTensor> tensors() const {
    std::vector<NamedTensor> tensors;
    for (const auto& average : average_.averages())
      tensors.push_back({std::to_string(tensors.size()), average});
    return tensors;
  }

  WeightAverage& average_;
};

}  // namespace

ItemPointer tensor_item(torch::Tensor& tensor) {
  return std::make_unique<TensorItem>(tensor);
}

ItemPointer tensor_item(WeightAverage& average) {
  return std::make_unique<AverageItem>(average);
}

ItemPointer text_item(std::function<std::string()> save, std::function<void(const std::string&)> load) {
  return std::make_unique<TextItem>(std::move(save), std::move(load));
}

ItemPointer value_item(std::string& value) {
  return text_item([&value] { return value; }, [&value](const std::string& saved) { value = saved; });
}

}  // namespace lockstep::checkpoint
