// Checkpoints of a training: the state of all objects that it is given, in one folder for each checkpoint,
// from which the training continues on any number of ranks.
//
//   lockstep::Checkpointer checkpointer(world, "run/checkpoints");
//   checkpointer.add("model", *model);
//   checkpointer.add("optimizer", optimizer);
//   checkpointer.add("loader", loader);
//   checkpointer.load_latest();                                    // after DistributedDataParallel was made
//   …
//     if (step % 1000 == 0) checkpointer.save(step);
//   …
//   checkpointer.wait();
//
// save() copies the state to memory and returns; a thread writes it to disk while training goes on. A
// checkpoint is complete or does not exist, even if the job is killed. One training at a time uses a folder: rank 0
// locks it. docs/users/checkpoints.md describes the files.
//
// Threads: the training thread. All ranks make and destroy the object, and call save(), wait() and load_latest(),
// together. LOCKSTEP_TIMEOUT does not apply while the files of any rank get longer.
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "runtime/comm/world.h"
#include "runtime/train/checkpoint/stop_signal.h"  // IWYU pragma: export

namespace lockstep {

namespace checkpoint {
class Item;
}
class DistributedOptimizerBase;
class FileSystem;
class LearningRate;

struct CheckpointerOptions {
  /// A folder on the node's own disk. A checkpoint is written there first, and then copied to the shared
  /// folder, so that a slow shared file system does not keep its memory in use. Empty: not used.
  std::filesystem::path local_dir = {};
  /// Number of checkpoints to keep; older ones are removed.
  int keep = 2;
  /// Seconds that rank 0 waits for another rank that writes nothing.
  double timeout = 300;
  /// Only load: for a program that reads the checkpoints of a training that may run. Takes no lock; save() is refused.
  bool read_only = false;
  /// Take the folder's lock over from a holder that cannot be looked up: without Slurm, one on another node. Set it by
  /// hand when that training has ended.
  bool force = false;
  /// For tests: the file system to use; null: the operating system's.
  FileSystem* file_system = nullptr;
};

/// An object with LibTorch's functions for archives: GradScaler, ReduceOnPlateau, data::Loader, objects of your own.
template <typename Type>
concept Persistent =
    !std::derived_from<Type, torch::nn::Module> && !std::derived_from<Type, torch::optim::Optimizer> &&
    !std::derived_from<Type, DistributedOptimizerBase> &&
    requires(Type & object, torch::serialize::OutputArchive& out, torch::serialize::InputArchive& in) {
  object.save(out);
  object.load(in);
};

/// Values that have no functions of their own.
template <typename Type>
concept PersistentValue = std::same_as<Type, std::int64_t> || std::same_as<Type, double> ||
    std::same_as<Type, std::string> || std::same_as<Type, torch::Tensor>;

class Checkpointer {
 public:
  /// `folder` is on a file system that all ranks share; it is made if it does not exist. The state of each rank's random
  /// generators is always part of a checkpoint. The world must outlive this object. Waits for the end of another step
  /// of the same Slurm job. Throws UsageError for options that make no sense and if another Checkpointer of this program
  /// has the folder, and Error on all ranks if the folder cannot be written or another training uses it.
  Checkpointer(World& world, std::filesystem::path folder, const CheckpointerOptions& options = {});
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;
  /// Waits for the checkpoints that are being written on all ranks, and prints a line if one failed. During stack
  /// unwinding it does not wait for other ranks.
  ~Checkpointer();

  /// Adds an object that must outlive this one. Rank 0 saves an object that is the same on all ranks. An object of your own
  /// has save() and load() as LibTorch's; load() may throw to refuse the state, before anything is changed. Names are of
  /// letters, digits, '_' and '-'. All ranks add the same objects; a program that loads a checkpoint adds objects of the
  /// same names and types. Throws UsageError for a name that is taken.
  template <Persistent Type>
  void add(const std::string& name, Type& object) {
    add_object(
        name, [&object](auto& archive) { object.save(archive); },
        [&object](auto& archive) { object.load(archive); });
  }
  /// The same for values. An undefined tensor takes the saved one.
  template <PersistentValue Type>
  void add(const std::string& name, Type& value) {
    add_value(name, &value);
  }
  /// Exceptions, because they are too large for an archive, which would be a second copy in memory: their tensors are
  /// copied and written one by one, and compared before anything is loaded. Add modules before the optimizers of their
  /// parameters. Throw UsageError for an optimizer whose state is not known (all but Adam, AdamW, SGD, RMSprop and
  /// Adagrad), and for one that has two parameters of the same name.
  void add(const std::string& name, torch::nn::Module& module);
  void add(const std::string& name, torch::optim::Optimizer& optimizer);
  void add(const std::string& name, DistributedOptimizerBase& optimizer);
  /// An exception, because it is loaded after the optimizers, whose learning rates it then sets.
  void add(const std::string& name, LearningRate& learning_rate);

  /// Saves the state after `step` steps: copies it to memory, and begins to write it. Waits if the checkpoint
  /// before it is still being written from that memory. The time counts as the record's phase `checkpoint`.
  /// Throws Error on all ranks, naming the rank, if an earlier checkpoint could not be written; training can
  /// go on, and the next save() tries again. Does nothing if `step` was the last one that was saved or loaded. Throws
  /// UsageError if it is before the last one, and Error on all ranks if an object cannot be saved now, or if the folder
  /// has checkpoints of another training: one that load_latest() did not load.
  void save(std::int64_t step);

  /// Waits until all checkpoints are written. Throws Error as save() does.
  void wait();

  /// Continues from the newest checkpoint, which may come from another number of ranks, and returns its step;
  /// nullopt if there is none. A damaged checkpoint is skipped with a line on standard error; the next save() renames
  /// it. Throws Error on all ranks, naming the first difference, if the checkpoint does not fit the objects or all are
  /// damaged; then files, modules and optimizers are unchanged, and save() does not write into the folder. (If a file
  /// that was intact cannot be read again, some objects are already loaded; the error says so.) The objects are loaded
  /// one after the other, so the additional memory is that of the largest one.
  std::optional<std::int64_t> load_latest();

  /// The step of the last save() or load_latest(); -1 before.
  std::int64_t last_step() const;

 private:
  struct State;
  void add_object(const std::string& name, std::function<void(torch::serialize::OutputArchive&)> save,
                  std::function<void(torch::serialize::InputArchive&)> load);
  void add_value(const std::string& name,
                 std::variant<std::int64_t*, double*, std::string*, torch::Tensor*> value);
  void add_item(const std::string& name, std::unique_ptr<checkpoint::Item> item);
  std::unique_ptr<State> state_;
};

}  // namespace lockstep
