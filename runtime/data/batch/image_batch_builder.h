// Builds a micro-batch of images or volumes from the samples of a pack, decoded directly into a reusable buffer.
//
// Threads: build() is safe from several threads, each with its own worker number.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/batch/host_batch.h"
#include "runtime/data/batch/part_pixels.h"

namespace lockstep::data {

/// Finds data that is sorted by label: the loader mixes the samples of a block (order.h), so in larger data the steps of
/// a block see few of the labels.
class LabelOrder {
 public:
  /// Data of one block is mixed completely, so it is not looked at; nor is any with `samples` 0.
  explicit LabelOrder(std::size_t samples);

  /// Adds the samples of a batch, each once. Returns a sentence once, if neighbours in the data have the same label much
  /// more often than any two samples.
  std::optional<std::string> add(std::span<const std::int64_t> samples, std::span<const std::int64_t> labels);

 private:
  std::size_t samples_;
  std::atomic<bool> looking_;
  std::mutex mutex_;
  std::vector<std::pair<std::int64_t, std::int64_t>> seen_;  // sample and label
};

class ImageBatchBuilder final : public HostBatchBuilder {
 public:
  /// `reader` must outlive the builder. Throws UsageError if an option is wrong.
  ImageBatchBuilder(const pack::Reader& reader, const BuildOptions& options);

  HostBatch build(const MicroBatch& micro_batch, int worker) override;

  /// The maximum size of a batch in bytes.
  static std::size_t buffer_bytes(const PlanOptions& plan, const ImageOptions& images);

 private:
  // The reusable memory of a worker.
  struct WorkerBuffers {
    std::vector<std::byte> packed;
    std::vector<std::byte> packed_target;
    std::vector<std::byte> label;
    std::vector<std::uint8_t> pixels;
    std::vector<std::uint8_t> target;
  };
  // Where a sample goes in the batch.
  struct Places {
    std::span<std::uint8_t> image;
    std::span<std::uint8_t> target = {};
    std::int64_t* label = nullptr;
  };
  template <typename Wanted>
  const pack::Part& read_part(std::size_t number, const std::vector<pack::Part>& parts,
                              const std::string& what, const Wanted& wanted,
                              std::vector<std::byte>& into) const;
  std::int64_t label_of(std::size_t number, const std::vector<pack::Part>& parts,
                        WorkerBuffers& buffers) const;
  void look_at_size(ImageSize decoded, std::string_view kind, std::span<const std::byte> packed);
  void look_at_orientation(std::size_t number, std::string_view kind, std::span<const std::byte> packed);
  struct Decoded {
    PartPixels pixels;
    PartPixels target;
    std::size_t bytes = 0;  // that were read
  };
  Decoded decode_sample(std::size_t number, WorkerBuffers& buffers, const Places& places);
  std::size_t take_sample(SampleId id, std::uint64_t epoch, int worker, const Places& places);

  const ImageOptions& images_;
  PixelFormat format_;
  std::optional<PixelFormat> target_;
  std::vector<WorkerBuffers> buffers_of_workers_;
  LabelOrder label_order_;
  std::atomic<bool> turned_ = false;  // an image with another orientation was found
  std::atomic<int> looked_at_ = 0;    // images
  std::atomic<int> too_large_ = 0;    // of them: decoding at a part of their size would suffice
};

}  // namespace lockstep::data
