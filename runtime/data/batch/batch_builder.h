// Builds the tensors of a micro-batch from the samples of a pack, directly in a reusable buffer.
//
// Threads: build() is safe from several threads, each with its own worker number.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "runtime/data/batch/host_batch.h"
#include "runtime/data/loader_options.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/skipped_samples.h"
#include "staging/pack/reader.h"

namespace lockstep::data {

struct BuildOptions {
  int rank = 0;
  int workers = 1;
  PlanOptions plan;
  std::int64_t padding_token = 0;
  Transform transform;
  bool mapped = true;
  bool page_locked = false;
  /// The batches are copied to a device: tokens stay narrow, and what follows from them is made there
  /// (complete_on_device()).
  bool for_device = false;
  std::uint64_t skip_damaged = 0;
};

class BatchBuilder final : public HostBatchBuilder {
 public:
  /// `reader` and `lengths` must outlive the builder.
  BatchBuilder(const pack::Reader& reader, std::span<const std::uint32_t> lengths, BuildOptions options);

  HostBatch build(const MicroBatch& micro_batch, int worker) override;

  /// The maximum size of a batch in bytes.
  static std::size_t buffer_bytes(const PlanOptions& plan, bool for_device);

  const BatchBuffers& buffers() const override { return *buffers_; }

 private:
  struct Target;
  Target allocate(HostBatch& host, std::span<const SampleId> samples, const PlanOptions& plan);
  static void drop_unused_places(Batch& batch, std::size_t samples, bool padded);
  static void narrow_tokens(HostBatch& host, const Target& target);
  std::size_t length_of(SampleId id, const PlanOptions& plan) const;
  std::span<const std::byte> packed_bytes(std::size_t number, int worker);
  void prefetch(std::size_t number) const;
  void widen_tokens(std::span<const std::byte> packed, std::span<std::int64_t> tokens) const;
  std::size_t take_sample(SampleId id, std::span<const std::byte> packed, std::span<std::int64_t> tokens,
                          std::span<bool> mask, std::uint64_t epoch, int worker);

  const pack::Reader& reader_;
  std::span<const std::uint32_t> lengths_;
  BuildOptions options_;
  std::shared_ptr<BatchBuffers> buffers_;
  std::vector<std::vector<std::byte>> packed_;  // of each worker
  SkippedSamples skipped_;
};

}  // namespace lockstep::data
