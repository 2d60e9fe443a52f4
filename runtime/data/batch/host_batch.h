// A batch in host memory: the pool of buffers for its tensors, and what the classes share that build it on the workers.
//
// Reusing buffers avoids page faults, and page-locking a new one takes milliseconds. All tensors of a batch are in one buffer,
// so one copy brings them to a device. A buffer returns to the pool when its last tensor is destroyed and no copy in progress
// uses it.
//
// Threads: safe from any; build() with a worker number for each.
#pragma once

#include <cxxabi.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "common/error.h"
#include "runtime/data/epoch_cursor.h"
#include "runtime/data/loader_options.h"
#include "runtime/data/plan/options.h"
#include "staging/pack/reader.h"

namespace lockstep::data {

/// The host memory of one batch. It is not reused while it is referenced.
class BatchBuffer {
 public:
  explicit BatchBuffer(torch::Tensor bytes) : bytes_(std::move(bytes)) {}
  std::byte* data() const { return static_cast<std::byte*>(bytes_.data_ptr()); }
  /// uint8 [capacity].
  const torch::Tensor& bytes() const { return bytes_; }

 private:
  torch::Tensor bytes_;
};

class BatchBuffers : public std::enable_shared_from_this<BatchBuffers> {
 public:
  BatchBuffers(std::size_t capacity, bool page_locked) : capacity_(capacity), page_locked_(page_locked) {}

  /// Returns a free buffer, or a new one. Throws Error if there is no memory for it.
  std::shared_ptr<BatchBuffer> take();

  std::size_t capacity() const { return capacity_; }
  bool page_locked() const { return page_locked_; }

 private:
  torch::Tensor allocate() const;

  std::size_t capacity_;  // bytes of each
  bool page_locked_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<BatchBuffer>> free_;
};

/// Assigns places in a buffer, each at a multiple of 64 bytes.
class BufferLayout {
 public:
  /// Reserves this many bytes and returns their offset.
  std::size_t add(std::size_t bytes) {
    const std::size_t offset = used_;
    used_ += (bytes + 63) / 64 * 64;
    return offset;
  }
  std::size_t used() const { return used_; }

 private:
  std::size_t used_ = 0;
};

/// A tensor on a part of the buffer. It keeps the buffer from being reused.
torch::Tensor tensor_on(const std::shared_ptr<BatchBuffer>& buffer, std::size_t offset,
                        torch::IntArrayRef sizes, torch::ScalarType type);

/// A batch and the buffer that holds its tensors.
struct HostBatch {
  Batch batch;
  MicroBatch micro_batch;  ///< its place in the plan; the end of an epoch has no batch
  std::shared_ptr<BatchBuffer> buffer;
  std::size_t used = 0;        ///< bytes used of the buffer
  std::size_t bytes_read = 0;  ///< bytes of packed samples
};

struct BuildOptions {
  int rank = 0;
  int workers = 1;
  PlanOptions plan;
  LoaderOptions loader = {};  ///< for the contents of batches
  bool mapped = true;
  bool page_locked = false;
  /// The batches are copied to a device: tokens stay narrow, and what follows from them is made there
  /// (complete_on_device()).
  bool for_device = false;
};

/// The stored bytes of a sample cannot be read or decoded. Errors of a transform are not of this type.
class DamagedSample : public Error {
 public:
  using Error::Error;
};

/// Runs `read`, which reads or decodes a sample: its Error becomes a DamagedSample.
template <typename Read>
auto reading_sample(const Read& read) {
  try {
    return read();
  } catch (const UsageError&) {
    throw;
  } catch (const Error& damage) {
    throw DamagedSample(damage.what());
  }
}

class HostBatchBuilder {
 public:
  /// `reader` must outlive the builder. `batch_bytes`: the maximum size of a batch.
  HostBatchBuilder(const pack::Reader& reader, BuildOptions options, std::size_t batch_bytes)
      : reader_(reader),
        options_(std::move(options)),
        buffers_(std::make_shared<BatchBuffers>(batch_bytes, options_.page_locked)) {}
  virtual ~HostBatchBuilder() = default;

  /// Builds the micro-batch of this rank. Throws Error naming the sample that cannot be used.
  virtual HostBatch build(const MicroBatch& micro_batch, int worker) = 0;

  const BatchBuffers& buffers() const { return *buffers_; }

 protected:
  /// A batch without samples; without a buffer if the micro-batch is the end of an epoch.
  HostBatch begin_batch(const MicroBatch& micro_batch);

  /// Runs `work` on a sample; it may be user code. Returns false if the sample is damaged and left out
  /// (LoaderOptions::skip_damaged). Every other exception becomes an Error that names rank, step and sample. If `work` ends
  /// the thread (pthread_exit), place_of_thread_end() tells the sample.
  template <typename Work>
  bool use_sample(SampleId id, Batch& batch, const Work& work) {
    try {
      work();
      return true;
    } catch (abi::__forced_unwind&) {
      note_thread_end(id, batch.step);
      throw;
    } catch (...) {
      leave_out_or_throw(id, batch);
      return false;
    }
  }

  /// Fills in what user code learns of each sample. Seeds are the same for a sample and epoch on any worker and rank, and
  /// different for each worker of each rank.
  template <typename Described>
  void describe(Described& sample, SampleId id, std::uint64_t epoch, int worker) const {
    sample.id = id;
    sample.key = reader_.key(sample_of(id));
    sample.seed = seed_of(epoch, id);
    sample.worker = worker;
    sample.worker_seed =
        seed_of(~epoch, static_cast<std::uint64_t>(worker * options_.plan.ranks + options_.rank));
  }

  const pack::Reader& reader_;
  const BuildOptions options_;
  const std::shared_ptr<BatchBuffers> buffers_;

 private:
  std::uint64_t seed_of(std::uint64_t epoch, std::uint64_t stream) const;
  std::string name_of(SampleId id, std::int64_t step) const;
  void note_thread_end(SampleId id, std::int64_t step) const noexcept;
  void leave_out_or_throw(SampleId id, Batch& batch);
  void leave_out(SampleId id, const DamagedSample& damage);

  std::mutex skipped_mutex_;
  std::set<std::size_t> skipped_;  // numbers of samples
};

}  // namespace lockstep::data
