#include <fmt/format.h>
#include <xxhash.h>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

Plan::Plan(PlanOptions options, std::size_t samples, std::string fingerprint)
    : options_(std::move(options)), samples_(samples), fingerprint_(std::move(fingerprint)) {
}

std::span<const SampleId> Plan::step_samples(std::size_t step) const {
  const std::size_t first_batch = begin_of(rank_ends_, step * ranks());
  const std::size_t end_batch = rank_ends_[(step + 1) * ranks() - 1];
  const std::size_t begin = begin_of(batch_ends_, first_batch);
  return std::span(ids_).subspan(begin, begin_of(batch_ends_, end_batch) - begin);
}

std::string Plan::steps_fingerprint() const {
  XXH64_hash_t hash = 0;
  const auto add = [&hash](const auto& values) {
    hash = XXH3_64bits_withSeed(values.data(), values.size() * sizeof values[0], hash);
  };
  add(ids_);
  add(batch_ends_);
  add(rank_ends_);
  return fmt::format("{:016x}", hash);
}

void Plan::append_step(const std::vector<std::vector<std::vector<SampleId>>>& ranks) {
  for (const auto& batches : ranks) {
    for (const std::vector<SampleId>& batch : batches) {
      ids_.insert(ids_.end(), batch.begin(), batch.end());
      batch_ends_.push_back(ids_.size());
    }
    rank_ends_.push_back(batch_ends_.size());
  }
}

void Plan::append(const Plan& more) {
  const std::size_t first_id = ids_.size();
  const std::size_t first_batch = batch_ends_.size();
  ids_.insert(ids_.end(), more.ids_.begin(), more.ids_.end());
  for (const std::size_t end : more.batch_ends_) batch_ends_.push_back(first_id + end);
  for (const std::size_t end : more.rank_ends_) rank_ends_.push_back(first_batch + end);
}

}  // namespace lockstep::data
