#include "runtime/data/batch_builder.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "common/error.h"

namespace lockstep::data {
namespace {

// Tokens as they are packed (little-endian) to what embeddings take.
template <typename Token>
void widen(std::span<const std::byte> packed, std::int64_t* out) {
  const std::size_t count = packed.size() / sizeof(Token);
  for (std::size_t i = 0; i < count; ++i) {
    Token token;
    std::memcpy(&token, packed.data() + i * sizeof(Token), sizeof(Token));
    out[i] = token;
  }
}

}  // namespace

BatchBuilder::BatchBuilder(const pack::Reader& reader, std::shared_ptr<const Plan> plan, int rank)
    : reader_(reader), plan_(std::move(plan)), rank_(rank) {
}

torch::Tensor BatchBuilder::buffer() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      torch::Tensor tensor = std::move(free_.back());
      free_.pop_back();
      return tensor;
    }
  }
  return torch::empty({static_cast<std::int64_t>(plan_->options().cap)}, torch::kInt64);
}

Batch BatchBuilder::build(std::size_t index) {
  const at::AutoDispatchBelowADInplaceOrView plain_views;  // autograd would let a view keep its base alive
  const auto accumulate = static_cast<std::size_t>(plan_->options().accumulate);
  const std::size_t step = index / accumulate;
  const std::size_t micro_batch = index % accumulate;
  const std::span<const SampleId> samples = plan_->micro_batch(step, rank_, static_cast<int>(micro_batch));

  Batch batch;
  batch.step = static_cast<std::int64_t>(step);
  batch.last_of_step = micro_batch + 1 == accumulate;
  batch.empty = samples.empty();
  const auto count = static_cast<std::int64_t>(samples.size());
  batch.cu_seqlens = torch::empty({count + 1}, torch::kInt32);
  batch.sample_ids = torch::empty({count}, torch::kInt64);
  const torch::Tensor tokens = buffer();
  const torch::Tensor positions = buffer();
  auto* const ids = batch.sample_ids.data_ptr<std::int64_t>();
  auto* const ends = batch.cu_seqlens.data_ptr<std::int32_t>();
  auto* const token_at = tokens.data_ptr<std::int64_t>();
  auto* const position_at = positions.data_ptr<std::int64_t>();

  std::vector<std::byte> packed;
  std::int64_t total = 0;
  ends[0] = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::size_t sample = samples[i];
    try {
      packed.resize(reader_.bytes(sample));
      reader_.read(sample, packed);
    } catch (const std::exception& error) {
      fail("step {}, rank {}: cannot read sample '{}' (number {}): {}", step, rank_, reader_.key(sample),
           sample, error.what());
    }
    const auto length = static_cast<std::int64_t>(reader_.tokens(sample));
    if (reader_.token_bytes() == 2) {
      widen<std::uint16_t>(packed, token_at + total);
    } else {
      widen<std::uint32_t>(packed, token_at + total);
    }
    std::iota(position_at + total, position_at + total + length, std::int64_t{0});
    total += length;
    ids[i] = static_cast<std::int64_t>(sample);
    ends[i + 1] = static_cast<std::int32_t>(total);
    batch.max_length = std::max(batch.max_length, length);
  }
  batch.tokens = tokens.narrow(0, 0, total);
  batch.positions = positions.narrow(0, 0, total);
  return batch;
}

void BatchBuilder::recycle(Batch batch) {
  const at::AutoDispatchBelowADInplaceOrView plain_views;
  const auto cap = static_cast<std::int64_t>(plan_->options().cap);
  for (torch::Tensor* tensor : {&batch.tokens, &batch.positions}) {
    // The batch's own view is then the only one left on this memory, whoever may have made others.
    if (tensor->use_count() != 1 || tensor->storage().use_count() != 1) continue;
    const std::lock_guard lock(mutex_);
    free_.push_back(tensor->as_strided({cap}, {1}, 0));
  }
}

}  // namespace lockstep::data
