#include "examples/text_lm/samples_seen.h"

#include <algorithm>

namespace lockstep::text_lm {

void SamplesSeen::add(const torch::Tensor& sample_ids) {
  const auto* const ids = sample_ids.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < sample_ids.size(0); ++i) {
    std::uint8_t& count = mine_.at(static_cast<std::size_t>(ids[i]));
    count = static_cast<std::uint8_t>(std::min(count + 1, 255));
  }
}

torch::Tensor SamplesSeen::on_all_ranks(World& world) const {
  std::vector<std::int32_t> sum(mine_.begin(), mine_.end());
  world.communicator().all_reduce({sum.data(), sum.size(), comm::DataType::i32}, "samples seen")->wait();
  return torch::tensor(sum, torch::kInt32).clamp_max(255).to(torch::kUInt8);
}

void SamplesSeen::resume(const torch::Tensor& counts, const World& world) {
  if (world.rank() != 0) return;
  const auto* const count = counts.data_ptr<std::uint8_t>();
  mine_.assign(count, count + counts.numel());
}

}  // namespace lockstep::text_lm
