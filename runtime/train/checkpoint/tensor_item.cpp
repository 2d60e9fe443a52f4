// A tensor of the program.
#include "common/error.h"
#include "runtime/train/checkpoint/items.h"

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

  void check(const Section& section) override {
    const torch::Tensor value = tensor_in(section, kValue);
    if (!tensor_.defined()) return;
    if (value.sizes() != tensor_.sizes() || value.scalar_type() != tensor_.scalar_type())
      fail("it is {} in the checkpoint, but {} here", describe(value), describe(tensor_));
  }

  void load(const Section& section) override {
    const torch::NoGradGuard no_grad;
    const torch::Tensor value = tensor_in(section, kValue);
    if (tensor_.defined()) {
      tensor_.detach().copy_(value);
    } else {
      tensor_ = value.clone();
    }
  }

 private:
  torch::Tensor& tensor_;
};

}  // namespace

ItemPointer value_item(torch::Tensor& tensor) {
  return std::make_unique<TensorItem>(tensor);
}

}  // namespace lockstep::checkpoint
