#include "runtime/data/batch/batch_builder.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "runtime/data/batch/widen.h"
#include "runtime/data/name_sample.h"
#include "runtime/data/sample_seeds.h"

namespace lockstep::data {

// Pointers into the tensors of the batch; null for those that a device makes.
struct BatchBuilder::Target {
  std::int64_t* tokens;
  std::int64_t* positions;
  bool* loss_mask;
  bool* attention_mask;  // of padded batches
  std::int32_t* ends;
  std::int64_t* ids;
  std::size_t row = 0;  // tokens of a padded row
};

BatchBuilder::BatchBuilder(const pack::Reader& reader, std::span<const std::uint32_t> lengths,
                           BuildOptions options)
    : reader_(reader),
      lengths_(lengths),
      options_(std::move(options)),
      buffers_(std::make_shared<BatchBuffers>(buffer_bytes(options_.plan, options_.for_device),
                                              options_.page_locked)),
      packed_(static_cast<std::size_t>(options_.workers)),
      skipped_(options_.skip_damaged) {
}

std::size_t BatchBuilder::buffer_bytes(const PlanOptions& plan, bool for_device) {
  BufferLayout layout;
  layout.add((plan.cap + 1) * sizeof(std::int32_t));
  layout.add(plan.cap * sizeof(bool));
  layout.add(plan.cap * sizeof(std::int64_t));
  if (!for_device) layout.add(plan.cap * sizeof(std::int64_t));
  if (!for_device && plan.padded) layout.add(plan.cap * sizeof(bool));
  layout.add(plan.cap * sizeof(std::int64_t));
  return layout.used();
}

BatchBuilder::Target BatchBuilder::allocate(HostBatch& host, std::span<const SampleId> samples,
                                            const PlanOptions& plan) {
  const auto rows = static_cast<std::int64_t>(samples.size());
  Target target{};
  std::vector<std::int64_t> shape;
  std::size_t places = 0;
  if (plan.padded) {
    std::size_t longest = 0;
    for (const SampleId id : samples) longest = std::max(longest, length_of(id, plan));
    target.row = samples.empty() ? 0 : padded_length(longest, plan.pad_multiple, plan.cap);
    places = samples.size() * target.row;
    shape = {rows, static_cast<std::int64_t>(target.row)};
  } else {
    for (const SampleId id : samples) places += length_of(id, plan);
    shape = {static_cast<std::int64_t>(places)};
  }
  host.buffer = buffers_->take();
  BufferLayout layout;
  const auto add = [&](torch::Tensor& tensor, torch::IntArrayRef sizes, torch::ScalarType type) {
    std::size_t bytes = torch::elementSize(type);
    for (const std::int64_t size : sizes) bytes *= static_cast<std::size_t>(size);
    const std::size_t offset = layout.add(bytes);
    if (layout.used() > buffers_->capacity()) {
      fail(
          "a micro-batch of {} samples and {} tokens is over the cap of {}: the plan was made for other lengths",
          samples.size(), places, plan.cap);
    }
    tensor = tensor_on(host.buffer, offset, sizes, type);
    return host.buffer->data() + offset;
  };
  Batch& batch = host.batch;
  // First what is copied to a device, with the tokens at its end: narrow tokens need only the beginning of their place.
  target.ends = reinterpret_cast<std::int32_t*>(add(batch.cu_seqlens, {rows + 1}, torch::kInt32));
  if (!options_.for_device || options_.transform) {
    target.loss_mask = reinterpret_cast<bool*>(add(batch.loss_mask, shape, torch::kBool));
  }
  target.tokens = reinterpret_cast<std::int64_t*>(add(batch.tokens, shape, torch::kInt64));
  if (!options_.for_device) {
    target.positions = reinterpret_cast<std::int64_t*>(add(batch.positions, shape, torch::kInt64));
    if (plan.padded) {
      target.attention_mask = reinterpret_cast<bool*>(add(batch.attention_mask, shape, torch::kBool));
    }
  }
  target.ids = reinterpret_cast<std::int64_t*>(add(batch.sample_ids, {rows}, torch::kInt64));
  host.used = layout.used();
  return target;
}

void BatchBuilder::narrow_tokens(HostBatch& host, const Target& target) {
  torch::Tensor& tokens = host.batch.tokens;
  const auto count = static_cast<std::size_t>(tokens.numel());
  const std::size_t bytes = narrow({target.tokens, count});
  const auto* const begin = reinterpret_cast<const std::byte*>(target.tokens);
  const auto offset = static_cast<std::size_t>(begin - host.buffer->data());
  host.used = offset + count * bytes;
  if (bytes == sizeof(std::int64_t)) return;
  // LibTorch 1.13 has no uint16; complete_on_device() knows that int16 stands for it.
  tokens = tensor_on(host.buffer, offset, tokens.sizes(),
                     bytes == sizeof(std::uint16_t) ? torch::kInt16 : torch::kInt32);
}

// The tokens that the plan uses of a sample or piece.
std::size_t BatchBuilder::length_of(SampleId id, const PlanOptions& plan) const {
  return planned_length(id, lengths_[sample_of(id)], plan);
}

void BatchBuilder::widen_tokens(std::span<const std::byte> packed, std::span<std::int64_t> tokens) const {
  const pack::TokenType type = reader_.token_type();
  if (type == pack::TokenType::u16 || type == pack::TokenType::u32) {
    return widen(packed.data(), static_cast<std::size_t>(pack::bytes_of(type)), tokens);
  }
  pack::widen(type, packed.first(tokens.size() * static_cast<std::size_t>(pack::bytes_of(type))), tokens);
}

std::span<const std::byte> BatchBuilder::packed_bytes(std::size_t number, int worker) {
  if (options_.mapped) {
    try {
      return reader_.view(number);
    } catch (const Error&) {  // it cannot be mapped: read it, which may work or explain the error
    }
  }
  std::vector<std::byte>& packed = packed_[static_cast<std::size_t>(worker)];
  const std::size_t bytes = reader_.bytes(number);
  if (packed.size() < bytes) packed.resize(bytes);
  const std::span read(packed.data(), bytes);
  reader_.read(number, read);
  return read;
}

// Prefetches a mapped sample. Errors are ignored here: they come again when the sample is used. The digest is
// also checked then and not here, so that no transform runs between the check and the use.
void BatchBuilder::prefetch(std::size_t number) const {
  if (!options_.mapped) return;
  try {
    prefetch_memory(reader_.unchecked_view(number));
  } catch (const Error&) {
  }
}

std::size_t BatchBuilder::take_sample(SampleId id, std::span<const std::byte> packed,
                                      std::span<std::int64_t> tokens, std::span<bool> mask,
                                      std::uint64_t epoch, int worker) {
  const auto token_bytes = static_cast<std::size_t>(reader_.token_bytes());
  reading_sample(
      [&] { widen_tokens(packed.subspan(piece_of(id) * options_.plan.cap * token_bytes), tokens); });
  if (!mask.empty()) {
    std::fill(mask.begin(), mask.end(), true);
    mask.front() = false;  // no token before it predicts it
  }
  if (!options_.transform) return tokens.size();
  Sample sample{.id = id, .key = reader_.key(sample_of(id)), .tokens = tokens, .loss_mask = mask};
  sample.seed = sample_seed(options_.plan, epoch, id);
  sample.worker = worker;
  sample.worker_seed = worker_seed(options_.plan, epoch, options_.rank, worker);
  options_.transform(sample);
  if (sample.tokens.data() != tokens.data() || sample.tokens.empty() ||
      sample.tokens.size() > tokens.size()) {
    fail("a transform may only change tokens in place and shorten the sample at its end");
  }
  return sample.tokens.size();
}

// Samples were left out, or a transform shortened some.
void BatchBuilder::drop_unused_places(Batch& batch, std::size_t samples, bool padded) {
  const auto rows = static_cast<std::int64_t>(samples);
  const std::int64_t places = padded ? rows : batch.token_count;
  for (torch::Tensor* tensor : {&batch.tokens, &batch.positions, &batch.loss_mask, &batch.attention_mask}) {
    if (tensor->defined() && tensor->size(0) != places) *tensor = tensor->narrow(0, 0, places);
  }
  if (batch.sample_ids.size(0) == rows) return;
  batch.cu_seqlens = batch.cu_seqlens.narrow(0, 0, rows + 1);
  batch.sample_ids = batch.sample_ids.narrow(0, 0, rows);
}

HostBatch BatchBuilder::build(const MicroBatch& micro_batch, int worker) {
  HostBatch host;
  host.micro_batch = micro_batch;
  if (!micro_batch.block) return host;
  const auto samples = micro_batch.samples(options_.rank);
  Batch& batch = host.batch;
  batch.step = static_cast<std::int64_t>(micro_batch.step_of_epoch());
  batch.last_of_step = micro_batch.last_of_step();
  const PlanOptions& plan = micro_batch.block->block.plan.options();
  const Target target = allocate(host, samples, plan);
  const bool padded = plan.padded;

  std::size_t at = 0;  // place of the sample in the batch's tensors
  std::size_t total = 0;
  std::size_t kept = 0;  // samples
  target.ends[0] = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const SampleId id = samples[i];
    const std::size_t planned = length_of(id, plan);
    std::span<bool> mask;
    if (target.loss_mask != nullptr) mask = {target.loss_mask + at, planned};
    std::size_t length = 0;
    try {
      naming_sample(reader_, id, options_.rank, batch.step, [&] {
        if (i + 1 < samples.size()) prefetch(sample_of(samples[i + 1]));
        const auto packed = reading_sample([&] { return packed_bytes(sample_of(id), worker); });
        length = take_sample(id, packed, {target.tokens + at, planned}, mask, micro_batch.epoch, worker);
      });
    } catch (const DamagedSample& damage) {
      skipped_.add(reader_, id, damage);
      ++batch.skipped;
      continue;
    }
    const std::size_t row = padded ? target.row : length;
    host.bytes_read += planned * static_cast<std::size_t>(reader_.token_bytes());
    if (target.positions != nullptr) count_up({target.positions + at, row});
    if (padded) {
      std::fill(target.tokens + at + length, target.tokens + at + row, options_.padding_token);
      if (target.loss_mask != nullptr) {
        std::fill(target.loss_mask + at + length, target.loss_mask + at + row, false);
      }
      if (target.attention_mask != nullptr) {
        std::fill(target.attention_mask + at, target.attention_mask + at + length, true);
        std::fill(target.attention_mask + at + length, target.attention_mask + at + row, false);
      }
    }
    batch.loss_tokens +=
        options_.transform
            ? std::count(mask.begin(), mask.begin() + static_cast<std::ptrdiff_t>(length), true)
            : static_cast<std::int64_t>(length) - 1;
    total += length;
    at += row;
    target.ids[kept] = static_cast<std::int64_t>(id);
    target.ends[++kept] = static_cast<std::int32_t>(total);
    batch.max_length = std::max(batch.max_length, static_cast<std::int64_t>(length));
  }
  batch.empty = kept == 0;
  batch.token_count = static_cast<std::int64_t>(total);
  batch.padding = padded ? static_cast<std::int64_t>(at - total) : 0;
  drop_unused_places(batch, kept, padded);
  if (options_.for_device) narrow_tokens(host, target);
  return host;
}

}  // namespace lockstep::data
