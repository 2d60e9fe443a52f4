#include "runtime/train/checkpoint/items.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "common/error.h"
#include "runtime/ddp/seen_tensors.h"
#include "runtime/torch_archive.h"

namespace lockstep::checkpoint {
namespace {

constexpr const char* kArchive = "archive";
constexpr const char* kValue = "value";

const NamedTensor* find(const std::vector<NamedTensor>& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const NamedTensor& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

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

/// A tensor of the program.
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

/// An object that writes itself into a LibTorch archive, which is stored as bytes.
class ArchiveItem : public Item {
 public:
  ArchiveItem(ArchiveItemOptions options, SaveObject save, LoadObject load)
      : options_(std::move(options)), save_(std::move(save)), load_(std::move(load)) {}

  std::string type() const override { return options_.type; }
  Kind kind() const override { return Kind::small; }
  Order order() const override { return options_.order; }

  Section save() override {
    torch::serialize::OutputArchive archive;
    save_(archive);
    return {.tensors = {{kArchive, archive_to_bytes(archive)}}};
  }

  void check(const Section& /*saved*/) override {}

  void load(const Section& saved) override {
    auto archive = archive_from_bytes(tensor_in(saved, kArchive));
    load_(archive);
  }

 private:
  ArchiveItemOptions options_;
  SaveObject save_;
  LoadObject load_;
};

/// `name`: of the value in the archive.
template <typename Type, typename Read>
ItemPointer archived_value(const char* type, const char* name, Type& value, Read read) {
  return archive_item([&value, name](auto& archive) { archive.write(name, value); },
                      [&value, name, read](auto& archive) { value = read(value_in(archive, name)); },
                      {.type = type});
}

}  // namespace

std::string describe(const torch::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check_tensors(const std::vector<NamedTensor>& current, const std::vector<NamedTensor>& saved,
                   const char* noun) {
  for (const NamedTensor& mine : current) {
    const NamedTensor* const other = find(saved, mine.name);
    if (other == nullptr) fail("the checkpoint has no {} '{}'", noun, mine.name);
    if (other->tensor.scalar_type() != mine.tensor.scalar_type() ||
        other->tensor.sizes() != mine.tensor.sizes())
      fail("{} '{}' is {} in the checkpoint, but {} here", noun, mine.name, describe(other->tensor),
           describe(mine.tensor));
  }
  for (const NamedTensor& other : saved) {
    if (find(current, other.name) == nullptr)
      fail("the checkpoint has {} '{}', which does not exist here", noun, other.name);
  }
}

torch::Tensor tensor_in(const Section& section, const std::string& name) {
  const NamedTensor* const found = find(section.tensors, name);
  if (found == nullptr) fail("the checkpoint has no tensor '{}'", name);
  return found->tensor;
}

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

ItemPointer archive_item(SaveObject save, LoadObject load, ArchiveItemOptions options) {
  return std::make_unique<ArchiveItem>(std::move(options), std::move(save), std::move(load));
}

ItemPointer value_item(std::int64_t& value) {
  return archived_value("integer", kValue, value, [](const c10::IValue& saved) { return saved.toInt(); });
}

ItemPointer value_item(double& value) {
  return archived_value("number", kValue, value, [](const c10::IValue& saved) { return saved.toDouble(); });
}

ItemPointer value_item(std::string& value) {
  return archived_value("text", "state", value, [](const c10::IValue& saved) { return saved.toStringRef(); });
}

ItemPointer value_item(torch::Tensor& tensor) {
  return std::make_unique<TensorItem>(tensor);
}

}  // namespace lockstep::checkpoint
