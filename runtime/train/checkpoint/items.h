// The kinds of objects that a checkpoint can hold, the interface that saves and loads them, and the state of one: named
// tensors and values. The objects must outlive the items.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
class DistributedOptimizerBase;
}  // namespace lockstep

namespace lockstep::checkpoint {

class ItemFiles;

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

struct Section {
  std::vector<NamedTensor> tensors;  ///< share memory with the object
  nlohmann::json values = nlohmann::json::object();
};

/// An object that was given to Checkpointer::add().
class Item {
 public:
  enum class Kind {
    small,       ///< the same on all ranks; all small items are in one file of rank 0
    replicated,  ///< the same on all ranks; a file of rank 0
    per_rank,    ///< a file of each rank
    per_node,    ///< small and different on each rank; a file of each node, with the sections of its ranks
  };

  virtual ~Item() = default;

  /// The kind of object, "module": it must be the same when the checkpoint is loaded.
  virtual std::string type() const = 0;
  virtual Kind kind() const = 0;

  virtual Section save() = 0;

  /// Throws Error naming the first difference if load() could not load the state; changes nothing. `saved`: of the first
  /// rank. The tensors have no memory, except those of small items.
  virtual void check(const Section& saved) = 0;

  /// Whether read() takes from the item's files what this rank needs. Otherwise load() gets the first rank's section with
  /// its tensors.
  virtual bool reads() const { return false; }
  /// Reads and verifies, and changes nothing yet. Another thread calls it; throws Damaged.
  virtual void read(const Section& /*saved*/, const ItemFiles& /*files*/) {}

  virtual void load(const Section& saved) = 0;

  /// Items load in this order. `refusing` is for objects that can refuse only while they load.
  enum class Order { refusing, tensors, last };
  virtual Order order() const { return Order::tensors; }
};

/// Throws Error naming the first difference in names, types or shapes. `noun`: "parameter".
void check_tensors(const std::vector<NamedTensor>& current, const std::vector<NamedTensor>& saved,
                   const char* noun);

/// Throws Error if the section does not have it.
torch::Tensor tensor_in(const Section& section, const std::string& name);

/// "float32 [16, 50]"
std::string describe(const torch::Tensor& tensor);

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

ItemPointer value_item(std::int64_t& value);
ItemPointer value_item(double& value);
ItemPointer value_item(std::string& value);
ItemPointer value_item(torch::Tensor& tensor);

/// The states of this process's random generators: of the CPU, of each other device, and of the one that the modules
/// are on.
ItemPointer random_item(int rank, const Modules& modules);

}  // namespace lockstep::checkpoint
