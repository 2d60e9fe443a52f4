// Builds a micro-batch of images or volumes from the samples of a pack, decoded directly into a reusable buffer.
//
// Threads: build() is safe from several threads, each with its own worker number.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/batch/host_batch.h"
#include "runtime/data/batch/image_batch.h"
#include "runtime/data/batch/label_order.h"
#include "runtime/data/batch/part_pixels.h"
#include "runtime/data/skipped_samples.h"
#include "staging/pack/reader.h"

namespace lockstep::data {

struct ImageBuildOptions {
  int rank = 0;
  int workers = 1;
  PlanOptions plan;
  ImageOptions images;
  bool page_locked = false;
  std::uint64_t skip_damaged = 0;
};

class ImageBatchBuilder final : public HostBatchBuilder {
 public:
  /// `reader` must outlive the builder. Throws UsageError if an option is wrong.
  ImageBatchBuilder(const pack::Reader& reader, ImageBuildOptions options);

  HostBatch build(const MicroBatch& micro_batch, int worker) override;

  /// The maximum size of a batch in bytes.
  static std::size_t buffer_bytes(const PlanOptions& plan, const ImageOptions& images);

  const BatchBuffers& buffers() const override { return *buffers_; }

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

  const pack::Reader& reader_;
  ImageBuildOptions options_;
  PixelFormat format_;
  std::optional<PixelFormat> target_;
  std::shared_ptr<BatchBuffers> buffers_;
  std::vector<WorkerBuffers> buffers_of_workers_;
  LabelOrder label_order_;
  SkippedSamples skipped_;
  std::atomic<bool> turned_ = false;  // an image with another orientation was found
  std::atomic<int> looked_at_ = 0;    // images
  std::atomic<int> too_large_ = 0;    // of them: decoding at a part of their size would suffice
};

}  // namespace lockstep::data
