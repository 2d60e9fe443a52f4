#include "runtime/data/batch/host_batch.h"

#include <c10/util/Exception.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "common/error.h"
#include "common/ordered_prefetch.h"
#include "common/units.h"
#include "runtime/data/plan/order/random.h"

namespace lockstep::data {
namespace {

std::string file_of(const pack::Reader& reader, std::size_t number) {
  try {
    return reader.parts(number).at(0).shard;
  } catch (const std::exception&) {  // the sample's place is damaged too
    return "unknown";
  }
}

}  // namespace

std::shared_ptr<BatchBuffer> BatchBuffers::take() {
  std::unique_ptr<BatchBuffer> buffer;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      buffer = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!buffer) buffer = std::make_unique<BatchBuffer>(allocate());
  return {buffer.release(), [pool = weak_from_this()](BatchBuffer* used) {
            std::unique_ptr<BatchBuffer> owned(used);
            if (const auto alive = pool.lock()) {
              const std::lock_guard lock(alive->mutex_);
              alive->free_.push_back(std::move(owned));
            }
          }};
}

torch::Tensor BatchBuffers::allocate() const {
  const auto options = torch::TensorOptions().dtype(torch::kUInt8).pinned_memory(page_locked_);
  try {
    return torch::empty({static_cast<std::int64_t>(capacity_)}, options);
  } catch (const c10::Error& error) {
    fail("cannot allocate {} of {}memory for a batch: {}; lower the cap", format_bytes(capacity_),
         page_locked_ ? "page-locked " : "", error.what_without_backtrace());
  }
}

torch::Tensor tensor_on(const std::shared_ptr<BatchBuffer>& buffer, std::size_t offset,
                        torch::IntArrayRef sizes, torch::ScalarType type) {
  return torch::from_blob(
      buffer->data() + offset, sizes, [buffer](void*) {}, torch::TensorOptions().dtype(type));
}

HostBatch HostBatchBuilder::begin_batch(const MicroBatch& micro_batch) {
  HostBatch host;
  host.micro_batch = micro_batch;
  if (!micro_batch.block) return host;
  host.batch.step = static_cast<std::int64_t>(micro_batch.step_of_epoch());
  host.batch.last_of_step = micro_batch.last_of_step();
  host.buffer = buffers_->take();
  return host;
}

std::uint64_t HostBatchBuilder::seed_of(std::uint64_t epoch, std::uint64_t stream) const {
  return Random(options_.plan.seed, epoch, stream).next();
}

std::string HostBatchBuilder::name_of(SampleId id, std::int64_t step) const {
  return fmt::format("rank {}, step {}: sample '{}' (number {})", options_.rank, step,
                     reader_.key(sample_of(id)), sample_of(id));
}

// An exception while a thread is ended would end the process.
void HostBatchBuilder::note_thread_end(SampleId id, std::int64_t step) const noexcept {
  try {
    place_of_thread_end() = ": " + name_of(id, step);
  } catch (...) {
    place_of_thread_end() = {};
  }
}

void HostBatchBuilder::leave_out_or_throw(SampleId id, Batch& batch) {
  const auto named = [&](const char* what) { return fmt::format("{}: {}", name_of(id, batch.step), what); };
  try {
    throw;
  } catch (const DamagedSample& damage) {
    leave_out(id, DamagedSample(named(damage.what())));
    ++batch.skipped;
  } catch (const c10::Error& error) {  // its what() contains a stack trace
    throw Error(named(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw Error(named(error.what()));
  } catch (...) {
    throw Error(named("the exception is not a std::exception"));
  }
}

// Prints a line about a sample that is left out for the first time. Throws Error if it is one more than allowed.
void HostBatchBuilder::leave_out(SampleId id, const DamagedSample& damage) {
  const std::uint64_t allowed = options_.loader.skip_damaged;
  if (allowed == 0) throw damage;
  const std::size_t number = sample_of(id);
  const std::lock_guard lock(skipped_mutex_);
  if (!skipped_.insert(number).second) return;
  if (skipped_.size() > allowed) {
    skipped_.erase(number);  // so that a loop that is begun again fails too
    fail(
        "{} (file {}): more damaged samples on this rank than the {} that LoaderOptions::skip_damaged allows",
        damage.what(), file_of(reader_, number), allowed);
  }
  fmt::print(stderr, "lockstep: {} (file {}): left out, {} of at most {} on this rank\n", damage.what(),
             file_of(reader_, number), skipped_.size(), allowed);
}

}  // namespace lockstep::data
