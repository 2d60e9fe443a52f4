// The kinds of objects that a checkpoint can hold. The objects must outlive the items.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/train/checkpoint/section.h"

namespace lockstep {
class DistributedOptimizerBase;
}  // namespace lockstep

namespace lockstep::checkpoint {

using ItemPointer = std::unique_ptr<Item>;
/// The modules in a checkpoint; they give the parameters of optimizers their names.
using Modules = std::vector<std::pair<std::string, const torch::nn::Module*>>;

/// All parameters and buffers, each tensor once.
std::vector<NamedTensor> tensors_of(const torch::nn::Module& module);

ItemPointer module_item(torch::nn::Module& module);
/// Throws UsageError for an optimizer whose state is not known (LBFGS, one of your own), and for parameters that a
/// checkpoint cannot hold: two of the same name, or one that is not dense.
ItemPointer optimizer_item(torch::optim::Optimizer& optimizer, const Modules& modules);
ItemPointer optimizer_item(DistributedOptimizerBase& optimizer);

using SaveObject = std::function<void(torch::serialize::OutputArchive&)>;
using LoadObject = std::function<void(torch::serialize::InputArchive&)>;
struct ArchiveItemOptions {
  std::string type = "object";
  Item::Order order = Item::Order::refusing;
};
/// An object that saves itself into an archive. `load` may refuse the archive.
ItemPointer archive_item(SaveObject save, LoadObject load, ArchiveItemOptions options = {});

/// An object with save() and load().
template <typename Type>
ItemPointer object_item(Type& object, ArchiveItemOptions options = {}) {
  return archive_item([&object](auto& archive) { object.save(archive); },
                      [&object](auto& archive) { object.load(archive); }, std::move(options));
}

ItemPointer value_item(std::int64_t& value);
ItemPointer value_item(double& value);
ItemPointer value_item(std::string& value);
ItemPointer value_item(torch::Tensor& tensor);

/// The states of this process's random generators: of the CPU, of each other device, and of the one that the modules
/// are on.
ItemPointer random_item(int rank, const Modules& modules);

}  // namespace lockstep::checkpoint
