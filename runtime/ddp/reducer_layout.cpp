// Reducer: the layout of gradients in buckets.
#include "common/error.h"
#include "runtime/ddp/reducer.h"

namespace lockstep::ddp {
namespace {

constexpr double kMiB = 1 << 20;

}  // namespace

Assignment Reducer::assign(const std::vector<std::size_t>& order) const {
  std::vector<ParameterSize> sizes;
  for (const auto& parameter : parameters_) {
    sizes.push_back({.bytes = bytes_in_bucket(parameter.tensor),
                     .group = static_cast<std::uint32_t>(parameter.tensor.scalar_type())});
  }
  const std::size_t limits[] = {options_.first_bucket_bytes,
                                static_cast<std::size_t>(options_.bucket_cap_mb * kMiB)};
  return assign_buckets(sizes, order, limits);
}

// Assigns parameters to buckets that have no memory yet.
void Reducer::plan(const Assignment& assignment) {
  buckets_.clear();
  for (const auto& members : assignment) {
    for (std::size_t slot = 0; slot < members.size(); ++slot) {
      parameters_[members[slot]].bucket = buckets_.size();
      parameters_[members[slot]].slot = slot;
    }
    Bucket& bucket = buckets_.emplace_back();
    bucket.parameters = members;
    bucket.pending = members.size();
  }
}

// Gives the buckets memory, one after the other, and moves gradients there, which frees their old memory.
void Reducer::allocate() {
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    std::vector<torch::Tensor> tensors;
    for (const std::size_t i : bucket.parameters) tensors.push_back(parameters_[i].tensor);
    bucket.flat.emplace(device_communicator_, fmt::format("bucket {}", index), tensors);
    bucket.view.emplace(index, index + 1 == buckets_.size(), bucket.flat->buffer(), bucket.flat->tensor(),
                        bucket.flat->views(), tensors);
    if (!options_.gradient_as_bucket_view) continue;
    for (std::size_t slot = 0; slot < tensors.size(); ++slot) {
      torch::Tensor& gradient = tensors[slot].mutable_grad();
      if (!gradient.defined() || gradient.is_sparse()) continue;  // take_gradient() refuses a sparse one
      const torch::Tensor& view = bucket.flat->view(slot);
      view.copy_(gradient);
      gradient = view;
    }
  }
  if (comm_hook_) comm_hook_->buckets_changed();
}

// At the end of the first synchronised backward.
void Reducer::lay_out_first() {
  if (layout_ != Layout::assigned) return;
  layout_ = Layout::allocated;
  adopt_gradient_order();
  lay_out();
}

// If rank 0 skipped the first synchronised backward, a later one has the order of gradients.
void Reducer::rebuild_once() {
  if (layout_ == Layout::ordered) return;
  const auto before = order_;
  adopt_gradient_order();
  if (order_ != before) lay_out();
}

void Reducer::lay_out() {
  plan(assign(order_));
  allocate();
}

// All ranks take over the order in which rank 0's gradients arrived. Parameters without a gradient follow in the order of
// registration. If rank 0 skipped this step, the next one decides.
void Reducer::adopt_gradient_order() {
  std::vector<std::int64_t> order(arrivals_.begin(), arrivals_.end());
  std::vector<bool> arrived(parameters_.size());
  for (const std::size_t i : arrivals_) arrived[i] = true;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!arrived[i]) order.push_back(arrivals_.empty() ? -1 : static_cast<std::int64_t>(i));
  }
  host_communicator_
      .broadcast({order.data(), order.size(), comm::DataType::i64}, 0, "the order of gradients")
      ->wait();
  if (order[0] < 0) return;
  layout_ = Layout::ordered;
  order_.assign(order.begin(), order.end());
}

std::vector<std::vector<std::string>> Reducer::layout() const {
  std::vector<std::vector<std::string>> names;
  for (const auto& bucket : buckets_) {
    auto& list = names.emplace_back();
    for (const std::size_t i : bucket.parameters) list.push_back(parameters_[i].name);
  }
  return names;
}

}  // namespace lockstep::ddp
