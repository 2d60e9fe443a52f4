// Builds the tensors of a micro-batch from the samples of a pack, directly in a reusable buffer.
//
// Threads: build() is safe from several threads, each with its own worker number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/batch/host_batch.h"

namespace lockstep::data {

/// Converts little-endian unsigned tokens of 2 or 4 bytes to int64. `packed` needs no alignment.
void widen(const std::byte* packed, std::size_t token_bytes, std::span<std::int64_t> out);

/// Rewrites the tokens in place as uint16 if all fit, otherwise as int32, so that fewer bytes travel to a device. Returns
/// the bytes of each: 2, 4, or 8 if some need int64; they then stay as they are.
std::size_t narrow(std::span<std::int64_t> tokens);

class BatchBuilder final : public HostBatchBuilder {
 public:
  /// `reader` and `lengths` must outlive the builder.
  BatchBuilder(const pack::Reader& reader, std::span<const std::uint32_t> lengths,
               const BuildOptions& options);

  HostBatch build(const MicroBatch& micro_batch, int worker) override;

  /// The maximum size of a batch in bytes.
  static std::size_t buffer_bytes(const PlanOptions& plan, bool for_device);

 private:
  struct Target;
  Target place(HostBatch& host, std::span<const SampleId> samples, const PlanOptions& plan) const;
  static void drop_unused_places(Batch& batch, std::size_t samples, bool padded);
  static void narrow_tokens(HostBatch& host, const Target& target);
  std::size_t length_of(SampleId id, const PlanOptions& plan) const;
  std::span<const std::byte> packed_bytes(std::size_t number, int worker);
  void prefetch(std::size_t number) const;
  void widen_tokens(std::span<const std::byte> packed, std::span<std::int64_t> tokens) const;
  std::size_t take_sample(SampleId id, std::span<const std::byte> packed, std::span<std::int64_t> tokens,
                          std::span<bool> mask, std::uint64_t epoch, int worker);

  std::span<const std::uint32_t> lengths_;
  std::vector<std::vector<std::byte>> packed_;  // of each worker
};

}  // namespace lockstep::data
