// The loader reads this rank's part of an epoch from a pack of tokens. Worker threads build the planned
// micro-batches ahead of use, and the training loop takes them in the plan's order. Each rank makes the
// plan separately, a block of steps ahead of use, and the ranks compare their plans.
//
//   lockstep::data::Loader loader(*pack, {.cap = 16384, .accumulate = 4, .cost = {24576, 1}}, world);
//   for (auto epoch = loader.epoch(); epoch < epochs; ++epoch) {  // 0, or the resumed epoch
//     loader.set_epoch(epoch);
//     for (const auto& batch : loader) { ... if (batch.last_of_step) optimizer.step(); }
//   }
//
// The wait for a batch is timed as data_wait; a batch that is ready needs no wait. An error on a worker is
// thrown from the loop and names the sample. When an epoch ends, the next one is already planned and its
// first batches are built. Samples are tokens or images (batch/image_batch.h); several data sets can be
// mixed (Mixture in plan/options.h).
//
// Threads: one thread uses a Loader and its iterators, in one loop at a time. The workers live as long as
// the Loader.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/loader_options.h"
#include "runtime/data/plan/options.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep {
class World;
namespace comm {
class Communicator;
}
namespace pack {
class Reader;
}
namespace profile {
class StepTimer;
}
}  // namespace lockstep

namespace lockstep::data {

class Loader {
 public:
  class Iterator;
  struct End {};

  /// `reader` must outlive the loader. `plan.ranks` is set to the world's size. Throws UsageError if an
  /// option is wrong, and Error if the pack does not hold tokens or a sample is longer than the
  /// cap; empty samples are left out. Collective: if some ranks throw, the others throw too and name one of them.
  Loader(const pack::Reader& reader, PlanOptions plan, World& world, LoaderOptions options = {});

  /// The same for one rank of `plan.ranks`, without a world. `timer` may be null.
  Loader(const pack::Reader& reader, PlanOptions plan, int rank, profile::StepTimer* timer,
         LoaderOptions options = {});

  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /// Waits for the batches that are being built.
  ~Loader();

  /// Chooses the epoch of the next begin(). A resumed epoch continues at the position of its state. Until
  /// it has begun, every other epoch throws UsageError: an earlier one would train on samples again, a
  /// later one would skip the rest. A loop over epochs starts at epoch(). A mixture has only epoch 0,
  /// because its data sets count their own epochs.
  void set_epoch(std::uint64_t epoch);
  std::uint64_t epoch() const;

  /// The position of the loop between two optimizer steps, to save with the model. A step counts as done
  /// when the loop has taken its last micro-batch; an incomplete step is repeated from its beginning. The
  /// state of any rank can be used, if all ranks have done the same number of steps.
  void save(torch::serialize::OutputArchive& archive) const;

  /// Continues from a state: chooses its epoch, and the next begin() starts after the samples that it has
  /// used. The number of ranks, the cap, the accumulation and the step size may differ: every sample of the
  /// epoch is still used once, before or after. Throws Error that says what differs if the data, the seed
  /// or the order do, and Error if the state was modified.
  void load(torch::serialize::InputArchive& archive);

  /// Starts at the beginning of the chosen epoch, or at the position of the resumed state, and waits for
  /// the first batch.
  Iterator begin();
  End end() const { return {}; }

  /// The maximum memory of the batches. Available before the first batch is built.
  LoaderMemory memory() const;
  /// A line such as "2 workers, 4 batches ahead: at most 12.3 MiB of page-locked memory".
  std::string describe() const;

  /// How many workers and batches ahead are enough. Meaningful after some steps; all zero before the first
  /// batch.
  LoaderAdvice advice() const;

  /// How much of each of the mixture's data sets was used when the current step began. Throws UsageError
  /// without a mixture.
  std::vector<MixtureProgress> mixture_progress() const;

 private:
  friend class Iterator;
  struct State;
  std::string state() const;
  void make(const pack::Reader& reader, const PlanOptions& plan, int rank, profile::StepTimer* timer,
            comm::Communicator* communicator, const LoaderOptions& options);
  std::unique_ptr<State> state_;
};

/// An input iterator over this rank's micro-batches.
class Loader::Iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;

  /// Valid until the next ++.
  const Batch& operator*() const;
  const Batch* operator->() const { return &**this; }
  /// Waits for the next batch. Throws the error of building or copying it; another call tries the copy again.
  /// Collective: the ranks compare their plans at the first batch of a block. In a step they may make
  /// different numbers of calls.
  Iterator& operator++();
  void operator++(int) { ++*this; }
  friend bool operator==(const Iterator& iterator, End) { return iterator.done(); }

 private:
  friend class Loader;
  explicit Iterator(State& state) : state_(&state) {}
  bool done() const;

  State* state_;
};

}  // namespace lockstep::data
