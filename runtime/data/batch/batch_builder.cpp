#include "runtime/data/batch/batch_builder.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "common/error.h"
#include "common/vectorised.h"

namespace lockstep::data {
namespace {

// The loops that take most of a worker's time.

template <typename Token>
void widen_all(const std::byte* packed, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Token token;
    std::memcpy(&token, packed + i * sizeof(Token), sizeof(Token));
    out[i] = token;
  }
}

// In blocks, because the compiler cannot vectorise a loop whose results overlap its inputs.
template <typename Token>
void narrow_all(std::span<std::int64_t> tokens) {
  std::array<Token, 256> block;
  auto* out = reinterpret_cast<std::byte*>(tokens.data());
  for (std::size_t first = 0; first < tokens.size(); first += block.size()) {
    const std::size_t count = std::min(block.size(), tokens.size() - first);
    for (std::size_t i = 0; i < count; ++i) block[i] = static_cast<Token>(tokens[first + i]);
    std::memcpy(out, block.data(), count * sizeof(Token));
    out += count * sizeof(Token);
  }
}

// Prefetches memory that will be read soon: samples are in random order, so the processor cannot predict
// the next.
void prefetch_memory(std::span<const std::byte> bytes) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kMaxBytes = 2048;  // the processor prefetches the rest
  for (std::size_t at = 0; at < bytes.size() && at < kMaxBytes; at += kLine) {
    __builtin_prefetch(bytes.data() + at);
  }
}

}  // namespace

LOCKSTEP_VECTORISED
std::size_t narrow(std::span<std::int64_t> tokens) {
  std::int64_t bits = 0;  // of all tokens, with the complement of negative ones
  std::int64_t sign = 0;
  for (const std::int64_t token : tokens) {
    bits |= token ^ (token >> 63);
    sign |= token;
  }
  if (sign >= 0 && bits <= std::numeric_limits<std::uint16_t>::max()) {
    narrow_all<std::uint16_t>(tokens);
    return sizeof(std::uint16_t);
  }
  if (bits > std::numeric_limits<std::int32_t>::max()) return sizeof(std::int64_t);
  narrow_all<std::int32_t>(tokens);
  return sizeof(std::int32_t);
}

LOCKSTEP_VECTORISED
void widen(const std::byte* packed, std::size_t token_bytes, std::span<std::int64_t> out) {
  if (token_bytes == sizeof(std::uint16_t)) {
    widen_all<std::uint16_t>(packed, out);
  } else {
    widen_all<std::uint32_t>(packed, out);
  }
}

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
                           const BuildOptions& options)
    : HostBatchBuilder(reader, options, buffer_bytes(options.plan, options.for_device)),
      lengths_(lengths),
      packed_(static_cast<std::size_t>(options.workers)) {
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

// Makes the batch's tensors.
BatchBuilder::Target BatchBuilder::place(HostBatch& host, std::span<const SampleId> samples,
                                         const PlanOptions& plan) const {
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
  if (!options_.for_device || options_.loader.transform) {
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
  if (!options_.loader.transform) return tokens.size();
  Sample sample;
  sample.tokens = tokens;
  sample.loss_mask = mask;
  describe(sample, id, epoch, worker);
  options_.loader.transform(sample);
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
  HostBatch host = begin_batch(micro_batch);
  if (!micro_batch.block) return host;
  const auto samples = micro_batch.samples(options_.rank);
  Batch& batch = host.batch;
  const PlanOptions& plan = micro_batch.block->block.plan.options();
  const Target target = place(host, samples, plan);
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
    const bool used = use_sample(id, batch, [&] {
      if (i + 1 < samples.size()) prefetch(sample_of(samples[i + 1]));
      const auto packed = reading_sample([&] { return packed_bytes(sample_of(id), worker); });
      length = take_sample(id, packed, {target.tokens + at, planned}, mask, micro_batch.epoch, worker);
    });
    if (!used) continue;
    const std::size_t row = padded ? target.row : length;
    host.bytes_read += planned * static_cast<std::size_t>(reader_.token_bytes());
    if (target.positions != nullptr)
      std::iota(target.positions + at, target.positions + at + row, std::int64_t{0});
    if (padded) {
      std::fill(target.tokens + at + length, target.tokens + at + row, options_.loader.padding_token);
      if (target.loss_mask != nullptr) {
        std::fill(target.loss_mask + at + length, target.loss_mask + at + row, false);
      }
      if (target.attention_mask != nullptr) {
        std::fill(target.attention_mask + at, target.attention_mask + at + length, true);
        std::fill(target.attention_mask + at + length, target.attention_mask + at + row, false);
      }
    }
    batch.loss_tokens +=
        options_.loader.transform
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
