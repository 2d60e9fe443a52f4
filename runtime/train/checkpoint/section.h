// The state of one object in a checkpoint (named tensors and values), and the interface that saves and loads it.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

}  // namespace lockstep::checkpoint
