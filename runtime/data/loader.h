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
// Waiting for a batch is timed as data_wait. A batch that cannot be built throws from the loop, naming the
// sample. Leaving the loop early, also by an exception, stops and joins the workers.
//
// Threads: one thread uses a Loader and its iterators; one loop at a time.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

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

/// One micro-batch, its samples end to end without padding. Tensors are on the CPU. They may be kept: a
/// buffer is used again only once nobody else holds it.
struct Batch {
  torch::Tensor tokens;      ///< int64 [T]
  torch::Tensor positions;   ///< int64 [T]: from 0 within each sample
  torch::Tensor cu_seqlens;  ///< int32 [n + 1]: where each sample begins, and T
  torch::Tensor sample_ids;  ///< int64 [n]
  std::int64_t max_length = 0;
  std::int64_t step = 0;      ///< optimizer step of this epoch, from 0; goes on after resume()
  bool last_of_step = false;  ///< the step's last micro-batch: synchronise and update after it
  bool empty = false;         ///< no samples (the last step is filled up with these): DDP's skip()
};

struct LoaderOptions {
  /// Threads that build batches; 0: one for each worker CPU that the job was given, at most 4.
  int workers = 0;
  /// Batches that may be ready and waiting. Each takes about 16 bytes x cap.
  int batches_ahead = 4;
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
  ~Loader();

  /// Chooses the epoch of the next begin(); plans it when it differs from the last one planned.
  void set_epoch(std::uint64_t epoch);

  std::uint64_t epoch() const;

  /// The plan of the chosen epoch; after resume(), of what is left of it.
  const Plan& plan() const;

  /// Where the loop is, to be saved with the model: all batches handed out so far count as used, the current
  /// one too. Any rank's will do, since all are at the same micro-batch when they have done the same number.
  std::string state() const;

  /// Goes on where `state` was taken: chooses its epoch, and the next begin() starts behind what it has used.
  /// Also with other ranks, another cap or accumulation: what is left is then planned anew. Every sample of
  /// the epoch is handed out once, before or after. Throws Error where the data, the seed or the order
  /// differ, saying what does.
  void resume(std::string_view state);

  /// Starts the workers at the epoch's first micro-batch, or where resume() says, and waits for it.
  Iterator begin();
  End end() const { return {}; }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Moves through this rank's micro-batches once; joins the workers when it is destroyed.
class Loader::Iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;

  Iterator(Iterator&&) noexcept;
  Iterator& operator=(Iterator&&) noexcept;
  ~Iterator();

  /// Valid until the next ++.
  const Batch& operator*() const;
  const Batch* operator->() const { return &**this; }
  /// Waits for the next batch. Throws what building it threw.
  Iterator& operator++();
  void operator++(int) { ++*this; }
  friend bool operator==(const Iterator& iterator, End) { return iterator.done(); }

 private:
  friend class Loader;
  struct Run;
  explicit Iterator(std::unique_ptr<Run> run);
  bool done() const;

  std::unique_ptr<Run> run_;
};

}  // namespace lockstep::data
