#include "runtime/ddp/replica_check.h"

#include <ATen/Parallel.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "common/error.h"
#include "common/process.h"

namespace lockstep::ddp {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // bytes that one thread hashes at a time

struct Piece {
  const std::byte* data;
  std::size_t bytes;
};

std::uint64_t hash_on_cpu(const std::vector<NamedTensor>& parameters) {
  std::vector<torch::Tensor> dense;  // keeps copies
  std::vector<Piece> pieces;
  for (const auto& parameter : parameters) {
    dense.push_back(parameter.tensor.is_non_overlapping_and_dense() ? parameter.tensor
                                                                    : parameter.tensor.contiguous());
    const auto* const data = static_cast<const std::byte*>(dense.back().data_ptr());
    const std::size_t bytes = dense.back().nbytes();
    for (std::size_t at = 0; at < bytes; at += kPiece)
      pieces.push_back({data + at, std::min(kPiece, bytes - at)});
  }
  std::vector<std::uint64_t> hashes(pieces.size());
  at::parallel_for(0, static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      hashes[i] = XXH3_64bits(pieces[i].data, pieces[i].bytes);
  });
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof(std::uint64_t));
}

// The elements' bits as whole numbers, whose sum does not depend on the order.
torch::Tensor bits_of(const torch::Tensor& tensor) {
  const torch::Tensor real = tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
  switch (real.element_size()) {
    case 8:
      return real.view(torch::kLong);
    case 4:
      return real.view(torch::kInt);
    default:
      return real.view(torch::kShort);
  }
}

std::uint64_t hash_on_device(const std::vector<NamedTensor>& parameters) {
  std::vector<torch::Tensor> sums;
  for (const auto& parameter : parameters)
    sums.push_back(bits_of(parameter.tensor.detach()).sum(torch::kLong));
  const torch::Tensor all = torch::stack(sums).cpu();
  return XXH3_64bits(all.data_ptr(), all.nbytes());
}

double largest_difference(const torch::Tensor& left, const torch::Tensor& right) {
  if (left.numel() == 0) return 0;
  const auto type = left.is_complex() ? torch::kComplexDouble : torch::kDouble;
  return (left.to(type) - right.to(type)).abs().max().item<double>();
}

}  // namespace

ReplicaCheck::ReplicaCheck(comm::Communicator& host_communicator, comm::Communicator& device_communicator,
                           std::int64_t every)
    : host_communicator_(host_communicator), device_communicator_(device_communicator), every_(every) {
  if (every < 0) fail_usage("check_replicas_every is {}; it must be 0 (never) or more", every);
}

void ReplicaCheck::compare(const std::vector<NamedTensor>& parameters, std::int64_t step) {
  if (every_ == 0 || host_communicator_.size() == 1 || ++steps_ % every_ != 0) return;
  const torch::NoGradGuard no_grad;
  std::uint64_t hash =
      parameters.front().tensor.is_cpu() ? hash_on_cpu(parameters) : hash_on_device(parameters);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(host_communicator_.size()));
  host_communicator_.all_gather({&hash, 1, comm::DataType::i64}, all.data(), "the hashes of the parameters")
      ->wait();
  const auto differs = [&](std::uint64_t other) { return other != all.front(); };
  const auto other = std::find_if(all.begin(), all.end(), differs);
  if (other == all.end()) return;
  const auto ranks = std::count_if(all.begin(), all.end(), differs);
  fail(
      "the ranks' models have drifted apart before step {}: {}{}; such ranks have other processors or numbers of threads, or the program changes parameters on some ranks only, for example by an optimizer step without a synchronised backward; check_replicas_every = 0 trains on without a comparison",
      step, describe(static_cast<int>(other - all.begin()), largest_difference_from_rank_0(parameters)),
      ranks == 1 ? "" : fmt::format("; {} ranks differ from rank 0", ranks));
}

// "'layer.weight' by up to 1e-09"
std::string ReplicaCheck::largest_difference_from_rank_0(const std::vector<NamedTensor>& parameters) {
  double largest = 0;
  std::string difference = "bits that make no difference";  // such as -0 and 0
  for (const auto& [name, tensor] : parameters) {
    const torch::Tensor first = tensor.detach().clone();
    broadcast_from(device_communicator_, 0, {{name, first}}, "parameter to compare");
    const double mine = largest_difference(tensor.detach(), first);
    if (!(mine <= largest)) {  // it may be NaN
      largest = mine;
      difference = fmt::format("'{}' by up to {:.3g}", name, mine);
    }
  }
  return difference;
}

// The same text on all ranks.
std::string ReplicaCheck::describe(int rank, const std::string& difference) {
  const std::string me = rank_name(host_communicator_.rank(), host_communicator_.place().node_name);
  const std::string label = "the rank whose parameters differ";
  const std::string first = comm::broadcast_text(host_communicator_, me, 0, label);
  return comm::broadcast_text(host_communicator_,
                              fmt::format("{} and {} differ in {}", me, first, difference), rank, label);
}

}  // namespace lockstep::ddp
