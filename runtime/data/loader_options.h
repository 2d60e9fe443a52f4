// What a loader can be asked for, and what it tells about itself.
//
// Threads: values.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/batch/image_batch.h"
#include "runtime/data/cost_fit.h"
#include "runtime/data/loader_batch.h"
#include "runtime/data/plan/mixture/mixture.h"

namespace lockstep::data {

/// What a loader learns from the steps that it sees, to plan the blocks to come with.
enum class Learn {
  nothing,
  cost,             ///< what a sample costs, from how long rank 0's steps take
  cost_and_speeds,  ///< and how fast each rank is: slower ones get less
};

struct LoaderOptions {
  /// Threads that build batches; 0: one for each worker CPU that the job was given, at most 4.
  int workers = 0;
  /// Batches that may be under way or ready and waiting.
  int batches_ahead = 4;
  /// Bytes that they may take together, which can make them fewer; there is always one.
  std::size_t bytes_ahead = std::size_t{1} << 30U;
  /// Samples are taken from a mapping of their shard: no system call and no copy for each. Not said: where
  /// that is safe, on files of this node's disks that nobody may write to, such as staged ones
  /// (safe_to_map.h). Elsewhere they are read: a mapping ends the process where someone truncates the shard,
  /// a read throws.
  std::optional<bool> mapped = std::nullopt;
  /// Where batches are to be. They are copied there beside its work, one batch ahead, from page-locked
  /// memory.
  torch::Device device = torch::kCPU;
  /// What padded rows end with.
  std::int64_t padding_token = 0;
  /// User code for each sample of tokens, on the workers.
  Transform transform = nullptr;
  /// Whether the next epoch is planned, and its first batches built, before anyone asks for it.
  bool next_epoch_ahead = true;
  /// The data are images, and the plan's cap is how many a batch has.
  std::optional<ImageOptions> images = std::nullopt;
  /// Several data sets with weights; the pack holds them one after the other (joined_packs.h). The loop is
  /// then one run of the mixture's steps.
  std::optional<Mixture> mixture = std::nullopt;
  /// Needs a world. Decided in the middle of each block, by rank 0, and used from the next block on.
  Learn learn = Learn::nothing;
  /// How long this rank worked on the samples of the step that ended last, in seconds: what is learnt from.
  /// Not said: as the phases forward and backward of the world's timer say, or `other` where a program marks
  /// none. A device that works on behind these phases has to be asked.
  std::function<double()> step_seconds = nullptr;
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

/// What was learnt so far; the same on all ranks.
struct Learnt {
  Cost cost;                      ///< that the blocks to come are planned with
  std::vector<double> speeds;     ///< likewise; the fastest rank has 1; empty: all alike
  std::optional<FittedCost> fit;  ///< the last one, with its error
  bool fit_is_used = false;       ///< it was certain enough to be the cost
  int decisions = 0;              ///< so far, one for each block
};

/// As a line: "a batch takes 1.2 ms to build and 9.8 ms to use: 1 worker and 2 batches ahead suffice (…)".
std::string to_text(const LoaderAdvice& advice);

/// As a line: "a sample of L tokens takes 1.2e-06 L + 3.1e-10 L^2 s (± 3 %, ± 5 %; error of a step 1.4 %, 256
/// steps); speeds 1, 0.52".
std::string to_text(const Learnt& learnt);

}  // namespace lockstep::data
