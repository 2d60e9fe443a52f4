// The loader reads this rank's part of an epoch from a pack of tokens: worker threads build the planned
// micro-batches ahead of use, and the training loop takes them in the plan's order. Each rank plans for
// itself, a block of steps ahead of use, and all compare what they came to.
//
//   lockstep::data::Loader loader(*pack, {.cap = 16384, .accumulate = 4, .cost = {24576, 1}}, world);
//   for (auto epoch = loader.epoch(); epoch < epochs; ++epoch) {  // 0, or where resume() goes on
//     loader.set_epoch(epoch);
//     for (const auto& batch : loader) { ... if (batch.last_of_step) optimizer.step(); }
//   }
//
// Waiting for a batch is timed as data_wait; a batch that is ready costs none. What goes wrong on a worker is
// thrown from the loop, naming the sample. When an epoch ends the next one is planned already, and its first
// batches are built. Samples are tokens, or images (image_batch.h); several data sets can be mixed
// (plan/mixture/mixture.h).
//
// Threads: one thread uses a Loader and its iterators; one loop at a time. The workers live as long as the
// Loader.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/loader_batch.h"
#include "runtime/data/loader_options.h"
#include "runtime/data/plan/planner.h"

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

  /// `reader` must outlive the loader. `plan.ranks` is set to the world's size. Throws UsageError when an
  /// option is wrong, and Error when the pack holds no tokens, or naming the sample that is empty or longer
  /// than the cap. Collective: where it is so on some ranks only, the others throw too, naming one of them.
  Loader(const pack::Reader& reader, PlanOptions plan, World& world, LoaderOptions options = {});

  /// The same for a given rank of `plan.ranks`, without a world; `timer` may be null.
  Loader(const pack::Reader& reader, PlanOptions plan, int rank, profile::StepTimer* timer,
         LoaderOptions options = {});

  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /// Waits for batches that are being built, and no more.
  ~Loader();

  /// Chooses the epoch of the next begin(); the one that was resumed goes on where its state was taken.
  /// Throws UsageError for another one than was resumed and not begun yet: an earlier one would train on
  /// samples again, a later one skip the rest. A loop over epochs starts at epoch(). A mixture has only the
  /// one, 0: its data sets count their own.
  void set_epoch(std::uint64_t epoch);
  std::uint64_t epoch() const;

  /// Where the loop is, to be saved with the model, between two optimizer steps: a step counts as used when
  /// its last micro-batch was handed out, and is done again whole where it was not. Any rank's will do, once
  /// all have done the same number of steps.
  std::string state() const;

  /// Goes on where `state` was taken: chooses its epoch, and the next begin() starts after what it has used.
  /// Also with other ranks, another cap, accumulation or step size. Every sample of the epoch is handed out
  /// once, before or after. Throws Error where the data, the seed or the order differ, saying what does,
  /// and where the state was changed since it was taken.
  void resume(std::string_view state);

  /// Starts at the chosen epoch's first micro-batch, or where resume() says, and waits for it.
  Iterator begin();
  End end() const { return {}; }

  /// Known before the first batch is built.
  LoaderMemory memory() const;
  /// As a line: "2 workers, 4 batches ahead: at most 12.3 MiB of page-locked memory".
  std::string describe() const;

  /// Meaningful after some steps. All zero before the first batch.
  LoaderAdvice advice() const;

  /// What was learnt from the steps, where LoaderOptions::learn says to.
  const Learnt& learnt() const;

  /// How far each of a mixture's data sets was when the current step began. Throws UsageError without a
  /// mixture.
  std::vector<MixtureProgress> mixture_progress() const;

 private:
  friend class Iterator;
  struct State;
  void make(const pack::Reader& reader, const PlanOptions& plan, int rank, profile::StepTimer* timer,
            comm::Communicator* communicator, const LoaderOptions& options);
  std::unique_ptr<State> state_;
};

/// Moves through this rank's micro-batches once.
class Loader::Iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;

  /// Valid until the next ++.
  const Batch& operator*() const;
  const Batch* operator->() const { return &**this; }
  /// Waits for the next batch. Throws what building it threw. Collective: the first batch of a block makes
  /// all ranks compare their plans, and some batches what was learnt. Ranks need not make equally many calls
  /// in a step.
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
