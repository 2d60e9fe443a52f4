// The options of a loader, and the values that it reports about itself.
//
// Threads: values.
#pragma once

#include <c10/core/Device.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/batch/image_batch.h"
#include "runtime/data/plan/options.h"
#include "staging/pack/reader.h"

// A micro-batch as the loop receives it, and a sample as a transform receives it.

namespace lockstep::data {

/// A batch holds samples end to end without padding (T tokens), samples in R padded rows of length L, or
/// images or volumes. Tensors that do not apply are undefined. Tensors may be kept: their memory is reused only after
/// they are destroyed.
struct Batch {
  torch::Tensor tokens;          ///< int64 [T] or [R, L]; padding is LoaderOptions::padding_token
  torch::Tensor positions;       ///< int64 [T] or [R, L]: position in the sample, from 0
  torch::Tensor loss_mask;       ///< bool [T] or [R, L]: tokens that count in the loss
  torch::Tensor attention_mask;  ///< bool [R, L]: false for padding; undefined in packed batches
  /// uint8 or int16 [N, channels, height, width], or [N, channels, depth, height, width]; in memory channels_last
  torch::Tensor images;
  torch::Tensor targets;     ///< uint8 or int16, as `images`; undefined without ImageOptions::target
  torch::Tensor labels;      ///< int64 [N]; undefined without labels
  torch::Tensor cu_seqlens;  ///< int32 [n + 1]: where each sample begins, as if end to end, and T
  torch::Tensor sample_ids;  ///< int64 [n], on the CPU; for sample_of(), piece_of() and epoch_of()
  std::int64_t max_length = 0;
  std::int64_t token_count = 0;  ///< without padding
  std::int64_t loss_tokens = 0;  ///< tokens that the loss mask counts
  std::int64_t padding = 0;      ///< padding tokens
  std::int64_t skipped = 0;      ///< damaged samples that were left out (LoaderOptions::skip_damaged)
  std::int64_t step = 0;         ///< optimizer step of this epoch, from 0; continues after resume()
  bool last_of_step = false;  ///< this rank's last micro-batch of the step: synchronise and update after it
  /// The batch has no samples: call DDP's skip(), which does nothing under no_sync(). Without skip_damaged, an empty batch
  /// that is not last_of_step occurs only with PlanOptions::equal_micro_batches: other ranks have a micro-batch at this
  /// time, so take part in the communication of their forward.
  bool empty = false;
};

/// A sample that a transform may change in the batch.
struct Sample {
  SampleId id = 0;
  std::string_view key;            ///< its name in the pack
  std::span<std::int64_t> tokens;  ///< to change in place; assign a shorter span to shorten the sample
  std::span<bool> loss_mask;       ///< whether a token counts; false for the first, which no token predicts
  std::uint64_t seed = 0;          ///< for random numbers: the same for this sample and epoch on any worker
  int worker = 0;                  ///< number of the worker, from 0
  std::uint64_t worker_seed = 0;   ///< differs between workers and ranks
};

/// User code that the worker threads run on each sample, several at a time. Its exceptions are thrown from
/// the training loop, with the sample's name.
using Transform = std::function<void(Sample&)>;

struct LoaderOptions {
  /// Threads that build batches (num_workers in PyTorch); 0: one for each CPU in LOCKSTEP_WORKER_CPUS, at most 4, or one if that is
  /// not set.
  int workers = 0;
  /// Maximum number of batches that are being built or are ready, of all workers together. PyTorch's prefetch_factor is
  /// for each worker: it corresponds to prefetch_factor x num_workers.
  int batches_ahead = 4;
  /// Maximum bytes of these batches together. It can reduce their number, but not below one.
  std::size_t bytes_ahead = std::size_t{1} << 30U;
  /// Map shards instead of reading samples, which saves a system call and a copy for each. Not set: map
  /// them if that is safe, as for staged files: on this node's disks and without write permission
  /// (pack::Reader::safe_to_map()). If somebody truncates a shard, a mapping ends the process, but a read throws.
  std::optional<bool> mapped = std::nullopt;
  /// The device of the batches. They are copied to it from page-locked memory, one batch ahead, while it
  /// computes.
  torch::Device device = torch::kCPU;
  /// The token that fills padded rows.
  std::int64_t padding_token = 0;
  /// User code that the workers run on each sample of tokens.
  Transform transform = nullptr;
  /// Leave out samples whose stored bytes cannot be read or decoded, instead of ending the loop: at most this many
  /// different ones on each rank. The plan stays: the micro-batch has fewer samples, perhaps none (Batch::empty).
  std::uint64_t skip_damaged = 0;
  /// Plan the next epoch and build its first batches before the loop begins it.
  bool next_epoch_ahead = true;
  /// Set if the data are images. The plan's cap is then the number of images in a batch.
  std::optional<ImageOptions> images = std::nullopt;
  /// Several data sets with weights. The pack holds them one after the other (JoinedPacks), and the loop
  /// is one run of the mixture's steps.
  std::optional<Mixture> mixture = std::nullopt;
};

/// The maximum memory of the loader in bytes, without the batches that the loop keeps.
struct LoaderMemory {
  std::size_t batch = 0;    ///< one batch
  std::size_t batches = 0;  ///< number of batches: ahead, in use, and being copied to the device
  bool page_locked = false;
  std::size_t total() const { return batch * batches; }
};

/// Measurements since the construction of the loader, and the settings that follow from them.
struct LoaderAdvice {
  double build_seconds = 0;   ///< mean time of a worker to build a batch
  double longest_build = 0;   ///< maximum of that, in seconds
  double use_seconds = 0;     ///< mean time of the loop between two batches, without waiting
  double waited_seconds = 0;  ///< total wait of the loop, without the first batch of each loop
  int workers = 0;            ///< that are enough
  int batches_ahead = 0;      ///< that are enough
  LoaderMemory memory;        ///< with these settings
};

/// A line such as "a batch takes 1.2 ms to build and 9.8 ms to use: 1 worker and 2 batches ahead suffice
/// (…)".
std::string to_text(const LoaderAdvice& advice);

// Turns pixels into the floats that a network expects, on the device where it computes: images travel to
// the device as bytes, a quarter of the size of floats.

/// Mean and standard deviation of each channel, for pixels between 0 and 1. The defaults are ImageNet's.
struct PixelStatistics {
  std::vector<double> mean = {0.485, 0.456, 0.406};
  std::vector<double> deviation = {0.229, 0.224, 0.225};
};

/// Returns (pixel / 255 - mean) / deviation as `type`, in the shape and memory format and on the device of
/// `images`, which must be uint8 [n, channels, height, width] or [n, channels, depth, height, width]. Throws UsageError for other tensors, and if
/// the statistics have another number of channels.
torch::Tensor normalise_images(const torch::Tensor& images, const PixelStatistics& statistics = {},
                               torch::ScalarType type = torch::kFloat32);

// Presents several packs as one: the samples of the first pack, then those of the second, and so on. It is
// for mixtures (plan/options.h) and for data in several packs.
//
//   const auto web = pack::open("web"), books = pack::open("books");
//   const JoinedPacks packs({{"web", web.get()}, {"books", books.get()}});

using NamedPack = pack::NamedReader;

class JoinedPacks final : public pack::JoinedReader {
 public:
  using JoinedReader::JoinedReader;

  /// The value for Mixture::parts.
  std::vector<MixturePart> parts_of_mixture() const {
    std::vector<MixturePart> parts;
    for (const NamedPack& pack : readers()) parts.push_back({pack.name, pack.reader->size()});
    return parts;
  }
};

}  // namespace lockstep::data
