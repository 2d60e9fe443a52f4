#include "runtime/ddp/buckets.h"

#include <numeric>

#include "common/error.h"
#include "runtime/ddp/bucketing.h"

namespace lockstep::ddp {
namespace {

constexpr double kMiB = 1 << 20;

// Another tensor on the same memory counts too: Module::zero_grad() makes one.
bool lies_in(const torch::Tensor& gradient, const torch::Tensor& view) {
  return gradient.is_same(view) ||
         (gradient.data_ptr() == view.data_ptr() && gradient.strides() == view.strides());
}

}  // namespace

Buckets::Buckets(comm::Communicator& communicator, const DistributedDataParallelOptions& options,
                 std::vector<NamedTensor> parameters)
    : communicator_(communicator),
      options_(options),
      parameters_(std::move(parameters)),
      places_(parameters_.size()) {
  std::vector<std::size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  assign(order);
}

void Buckets::assign(const std::vector<std::size_t>& order) {
  std::vector<ParameterSize> sizes;
  for (const auto& [name, tensor] : parameters_) {
    sizes.push_back(
        {.bytes = bytes_in_bucket(tensor), .group = static_cast<std::uint32_t>(tensor.scalar_type())});
  }
  const std::size_t limits[] = {options_.first_bucket_bytes,
                                static_cast<std::size_t>(options_.bucket_cap_mb * kMiB)};
  buckets_.clear();
  for (auto& members : assign_buckets(sizes, order, limits)) {
    for (const std::size_t i : members) places_[i] = {.bucket = buckets_.size(), .view = {}};
    buckets_.emplace_back().parameters = std::move(members);
  }
}

void Buckets::allocate() {
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    std::vector<torch::Tensor> tensors;
    for (const std::size_t i : bucket.parameters) tensors.push_back(parameters_[i].tensor);
    bucket.flat.emplace(communicator_, fmt::format("bucket {}", index), tensors);
    bucket.view.emplace(index, index + 1 == buckets_.size(), bucket.flat->buffer(), bucket.flat->tensor(),
                        bucket.flat->views(), tensors);
    for (std::size_t slot = 0; slot < tensors.size(); ++slot) {
      const std::size_t i = bucket.parameters[slot];
      places_[i].view = bucket.flat->view(slot);
      if (options_.gradient_as_bucket_view && tensors[slot].grad().defined()) take_gradient(i);
    }
  }
}

std::vector<std::vector<std::string>> Buckets::layout() const {
  std::vector<std::vector<std::string>> names;
  for (const auto& bucket : buckets_) {
    auto& list = names.emplace_back();
    for (const std::size_t i : bucket.parameters) list.push_back(parameters_[i].name);
  }
  return names;
}

void Buckets::take_gradient(std::size_t parameter) {
  torch::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  const torch::Tensor& view = places_[parameter].view;
  if (!gradient.defined()) {
    view.zero_();
  } else if (gradient.is_sparse()) {
    fail_usage(
        "parameter '{}' has a sparse gradient, which is not supported; set sparse(false) in the options of its embedding",
        parameters_[parameter].name);
  } else if (!lies_in(gradient, view)) {
    view.copy_(gradient);
    if (options_.gradient_as_bucket_view) gradient = view;
  }
}

void Buckets::give_back_gradients(const std::vector<std::uint8_t>& used_anywhere) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (used_anywhere[i] == 0) continue;
    const torch::Tensor& view = places_[i].view;
    torch::Tensor& gradient = parameters_[i].tensor.mutable_grad();
    if (!gradient.defined()) {
      gradient = options_.gradient_as_bucket_view ? view : view.clone();
    } else if (!options_.gradient_as_bucket_view) {
      gradient.copy_(view);
    }
  }
}

}  // namespace lockstep::ddp
