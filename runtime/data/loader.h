// The loader reads this rank's part of an epoch from a pack of tokens: worker threads build the planned
// micro-batches ahead of use, and the training loop takes them in the plan's order. All ranks plan the same
// epoch from the same lengths, so they agree on the steps without a word.
//
//   lockstep::data::Loader loader(*pack, {.cap = 16384, .accumulate = 4, .cost = {24576, 1}}, world);
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     loader.set_epoch(epoch);
//     for (const auto& batch : loader) { ... if (batch.last_of_step) optimizer.step(); }
//   }
//
// Waiting for a batch is timed as data_wait; a batch that is ready costs none. What goes wrong on a worker is
// thrown from the loop, naming the sample. When an epoch ends the next one is planned already, and its first
// batches are built.
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

#include "runtime/data/loader_batch.h"
#include "runtime/data/planner.h"

namespace lockstep {
class World;
namespace pack {
class Reader;
}
namespace profile {
class StepTimer;
}
}  // namespace lockstep

namespace lockstep::data {

struct LoaderOptions {
  /// Threads that build batches; 0: one for each worker CPU that the job was given, at most 4.
  int workers = 0;
  /// Batches that may be under way or ready and waiting.
  int batches_ahead = 4;
  /// Bytes that they may take together, which can make them fewer; there is always one.
  std::size_t bytes_ahead = std::size_t{1} << 30U;
  /// Samples are taken from a mapping of their shard: no system call and no copy for each. Where that is no
  /// use, on a file system that is slow to map, or on one where others may truncate a shard that is in use (a
  /// mapping ends the process then, a read throws), they are read.
  bool mapped = true;
  /// Where batches are to be. They are copied there beside its work, one batch ahead, from page-locked
  /// memory.
  torch::Device device = torch::kCPU;
  /// What padded rows end with.
  std::int64_t padding_token = 0;
  /// User code for each sample, on the workers.
  Transform transform = nullptr;
  /// Whether the next epoch is planned, and its first batches built, before anyone asks for it.
  bool next_epoch_ahead = true;
};

/// What the loader holds at most, in bytes, however long it runs; batches that the loop keeps come on top.
struct LoaderMemory {
  std::size_t batch = 0;    ///< one batch
  std::size_t batches = 0;  ///< of them: ahead, in use, and on their way to the device
  bool page_locked = false;
  std::size_t total() const { return batch * batches; }
};

/// What was measured since the loader was made, and what follows from it.
struct LoaderAdvice {
  double build_seconds = 0;   ///< of a batch, on one worker; mean
  double longest_build = 0;   ///< seconds
  double use_seconds = 0;     ///< between two batches, waiting left out: what the loop does with one; mean
  double waited_seconds = 0;  ///< by the loop, for all batches but the first of each start
  int workers = 0;            ///< that suffice
  int batches_ahead = 0;      ///< that suffice
  LoaderMemory memory;        ///< that these take
};

class Loader {
 public:
  class Iterator;
  struct End {};

  /// `reader` must outlive the loader. `plan.ranks` is set to the world's size. Throws UsageError when an
  /// option is wrong, and Error when the pack holds no tokens, or naming the sample that is empty or longer
  /// than the cap.
  Loader(const pack::Reader& reader, PlanOptions plan, World& world, LoaderOptions options = {});

  /// The same for a given rank of `plan.ranks`, without a world; `timer` may be null.
  Loader(const pack::Reader& reader, PlanOptions plan, int rank, profile::StepTimer* timer,
         LoaderOptions options = {});

  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /// Waits for batches that are being built, and no more.
  ~Loader();

  /// Chooses the epoch of the next begin().
  void set_epoch(std::uint64_t epoch);
  std::uint64_t epoch() const;

  /// Where the loop is, to be saved with the model: all batches handed out so far count as used, the current
  /// one too. Any rank's will do, since all are at the same micro-batch when they have done the same number.
  std::string state() const;

  /// Goes on where `state` was taken: chooses its epoch, and the next begin() starts behind what it has used.
  /// Also with other ranks, another cap or accumulation: what is left is then planned anew. Every sample of
  /// the epoch is handed out once, before or after. Throws Error where the data, the seed or the order
  /// differ, saying what does.
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

 private:
  friend class Iterator;
  struct State;
  std::unique_ptr<State> state_;
};

/// As a line: "a batch takes 1.2 ms to build and 9.8 ms to use: 1 worker and 2 batches ahead suffice (…)".
std::string to_text(const LoaderAdvice& advice);

/// Moves through this rank's micro-batches once.
class Loader::Iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;

  /// Valid until the next ++.
  const Batch& operator*() const;
  const Batch* operator->() const { return &**this; }
  /// Waits for the next batch. Throws what building it threw.
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
