#include "runtime/ddp/sparse_gradient.h"

#include <algorithm>

#include "runtime/ddp/flat_bucket.h"

namespace lockstep::ddp {
namespace {

// Gathers the numbers of rows, then the rows, padded to the largest number.
struct SparseSum {
  SparseRanks ranks;
  torch::Tensor parameter;
  std::string label;
  std::function<torch::Tensor(const torch::Tensor&)> scaled;
  std::function<void(torch::Tensor)> done;

  torch::Tensor mine;                // without repeated rows; halves as float, so that sums are rounded once
  std::vector<std::int64_t> counts;  // rows, by rank
  torch::Tensor indices;             // of all ranks: [ranks, max(counts)]
  torch::Tensor values;              // [ranks, max(counts), row...]

  std::size_t rank() const { return static_cast<std::size_t>(ranks.host.rank()); }

  std::vector<comm::WorkHandle> gather_counts() {
    counts.assign(static_cast<std::size_t>(ranks.host.size()), 0);
    counts[rank()] = mine.values().size(0);
    return {ranks.host.all_gather({&counts[rank()], 1, comm::DataType::i64}, counts.data(), label + " rows")};
  }

  std::vector<comm::WorkHandle> gather_rows() {
    const std::int64_t rows = *std::max_element(counts.begin(), counts.end());
    indices = torch::zeros({ranks.host.size(), rows}, mine.indices().options());
    auto shape = mine.values().sizes().vec();
    shape[0] = rows;
    shape.insert(shape.begin(), ranks.host.size());
    values = torch::zeros(shape, mine.values().options());
    indices[ranks.host.rank()].narrow(0, 0, counts[rank()]).copy_(mine.indices()[0]);
    values[ranks.host.rank()].narrow(0, 0, counts[rank()]).copy_(mine.values());
    if (rows == 0) return {};
    return {gather(indices, comm::DataType::i64, " indices"),
            gather(values, data_type_of(values.scalar_type(), label), " values")};
  }

  comm::WorkHandle gather(torch::Tensor& all, comm::DataType type, const char* what) {
    const auto part = static_cast<std::size_t>(all[0].numel());
    auto* data = static_cast<std::byte*>(all.data_ptr());
    return ranks.device.all_gather({data + rank() * part * comm::size_of(type), part, type}, data,
                                   label + what);
  }

  void add_up() {
    std::vector<torch::Tensor> all_indices;
    std::vector<torch::Tensor> all_values;
    for (std::int64_t i = 0; i < ranks.host.size(); ++i) {
      const std::int64_t count = counts[static_cast<std::size_t>(i)];
      all_indices.push_back(indices[i].narrow(0, 0, count));
      all_values.push_back(values[i].narrow(0, 0, count));
    }
    auto sum = torch::sparse_coo_tensor(torch::cat(all_indices).unsqueeze(0), torch::cat(all_values),
                                        parameter.sizes())
                   .coalesce();
    const auto rows = scaled(sum.values()).to(parameter.scalar_type());
    done(torch::sparse_coo_tensor(sum.indices(), rows, parameter.sizes())._coalesced_(true));
  }
};

torch::Tensor rows_of(const torch::Tensor& parameter, const torch::Tensor& gradient) {
  const bool half = parameter.scalar_type() == torch::kBFloat16 || parameter.scalar_type() == torch::kHalf;
  const auto type = half ? torch::kFloat : parameter.scalar_type();
  if (gradient.defined()) return gradient.to(type).coalesce();
  auto shape = parameter.sizes().vec();
  shape[0] = 0;
  return torch::sparse_coo_tensor(torch::zeros({1, 0}, parameter.options().dtype(torch::kLong)),
                                  torch::zeros(shape, parameter.options().dtype(type)), parameter.sizes())
      ._coalesced_(true);
}

}  // namespace

std::unordered_set<const void*> sparse_parameters_of(const torch::nn::Module& module) {
  std::unordered_set<const void*> sparse;
  const auto add = [&](const auto* embedding) {
    if (embedding != nullptr && embedding->options.sparse())
      sparse.insert(embedding->weight.unsafeGetTensorImpl());
  };
  for (const auto& part : module.modules()) {
    add(part->as<torch::nn::Embedding>());
    add(part->as<torch::nn::EmbeddingBag>());
  }
  return sparse;
}

CommFuture sum_sparse(SparseRanks ranks, const torch::Tensor& parameter, const torch::Tensor& gradient,
                      const std::string& label, std::function<torch::Tensor(const torch::Tensor&)> scaled,
                      std::function<void(torch::Tensor)> done) {
  const torch::NoGradGuard no_grad;
  auto sum = std::make_shared<SparseSum>(SparseSum{.ranks = ranks,
                                                   .parameter = parameter.detach(),
                                                   .label = label,
                                                   .scaled = std::move(scaled),
                                                   .done = std::move(done),
                                                   .mine = rows_of(parameter.detach(), gradient),
                                                   .counts = {},
                                                   .indices = {},
                                                   .values = {}});
  return {sum->gather_counts(), [sum]() -> CommFuture {
            return {sum->gather_rows(), [sum]() -> CommFuture {
                      sum->add_up();
                      return {};
                    }};
          }};
}

}  // namespace lockstep::ddp
