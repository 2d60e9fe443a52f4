#include "runtime/train/sharding.h"

#include "common/error.h"

namespace lockstep::train {
namespace {

comm::Buffer part_of_rank(const comm::Buffer& all, const comm::Communicator& communicator) {
  const EqualParts parts(static_cast<std::int64_t>(all.count), communicator.size());
  const auto begin = static_cast<std::size_t>(parts.begin_of(communicator.rank()));
  return {static_cast<std::byte*>(all.data) + begin * comm::size_of(all.type),
          static_cast<std::size_t>(parts.each), all.type};
}

// Gives the gradient the memory layout of the parameter.
void put_in_order(torch::Tensor& parameter) {
  torch::Tensor& gradient = parameter.mutable_grad();
  if (gradient.strides() == parameter.strides()) return;
  auto copy = torch::empty_strided(parameter.sizes(), parameter.strides(), gradient.options());
  copy.copy_(gradient);
  gradient = copy;
}

}  // namespace

CommFuture ShardingHook::start(GradBucket& bucket, comm::Communicator& communicator) {
  communicator_ = &communicator;
  if (bucket.index() == next_.size()) {
    next_.push_back(bucket.parameters());
    if (bucket.is_last()) {
      layout_ = next_;
      ++generation_;
    }
  }
  const comm::Buffer all = bucket.memory();
  return {{communicator.reduce_scatter(
              all.data, part_of_rank(all, communicator), fmt::format("bucket {}", bucket.index()),
              {.op = comm::ReduceOp::average, .keep = std::make_shared<torch::Tensor>(bucket.buffer())})},
          {}};
}

Shards::Shards(const ShardingHook& hook, const std::map<const void*, std::size_t>& index_of)
    : partition_({}, hook.communicator().size()) {
  const torch::NoGradGuard no_grad;
  comm::Communicator& communicator = hook.communicator();
  std::vector<BucketLayout> layout;
  for (const BucketParameters& parameters : hook.layout()) {
    const auto& flat = buckets_.emplace_back(
        communicator, fmt::format("parameters of bucket {}", buckets_.size()), parameters);
    layout.push_back({.count = flat.tensor().numel(), .members = {}});
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto found = index_of.find(parameters[i].unsafeGetTensorImpl());
      if (found == index_of.end()) continue;
      torch::Tensor parameter = parameters[i];
      const torch::Tensor& view = flat.view(i);
      view.copy_(parameter);
      parameter.set_data(view);
      views_[found->second] = {parameter, view};
      const auto* const data = static_cast<std::byte*>(view.data_ptr());
      const auto element = static_cast<std::int64_t>(view.element_size());
      layout.back().members.push_back(
          {.parameter = found->second,
           .position = (data - static_cast<std::byte*>(flat.tensor().data_ptr())) / element,
           .elements = view.numel()});
    }
  }
  partition_ = Partition(std::move(layout), communicator.size());
  for (const Span& span : partition_.spans_of(communicator.rank())) {
    const auto& [parameter, view] = views_.at(span.parameter);
    slices_.push_back({span, parameter,
                       torch::empty({0}, view.options())
                           .set_(view.storage(), view.storage_offset() + span.begin, {span.size()}, {1})});
  }
}

void Shards::take_parameters_back() {
  const torch::NoGradGuard no_grad;
  for (auto& [index, both] : views_) {
    auto& [parameter, view] = both;
    if (parameter.data_ptr() == view.data_ptr()) continue;
    if (parameter.scalar_type() != view.scalar_type() || parameter.sizes() != view.sizes()) {
      fail_usage(
          "DistributedOptimizer: the model was converted between backward and step(); convert it before forward");
    }
    view.copy_(parameter);
    parameter.set_data(view);
  }
}

void Shards::take_gradients() {
  const torch::NoGradGuard no_grad;
  for (Slice& slice : slices_) {
    torch::Tensor& mine = slice.elements.mutable_grad();
    if (!slice.parameter.grad().defined()) {
      mine = torch::Tensor();
      continue;
    }
    put_in_order(slice.parameter);
    const torch::Tensor& gradient = slice.parameter.grad();
    mine = gradient.as_strided({slice.span.size()}, {1}, gradient.storage_offset() + slice.span.begin);
  }
}

Shards::Moved Shards::gather(comm::Communicator& communicator) {
  Moved moved;
  std::vector<comm::WorkHandle> works;
  for (const ddp::FlatBucket& bucket : buckets_) {
    const comm::Buffer all = bucket.buffer();
    moved.bytes += all.bytes();
    works.push_back(communicator.all_gather(part_of_rank(all, communicator), all.data, bucket.label()));
  }
  for (const auto& work : works) work->wait();
  if (!buckets_.empty() && buckets_.front().tensor().is_cpu()) moved.ns = comm::duration_ns(works);
  return moved;
}

}  // namespace lockstep::train
