#include "runtime/ddp/distributed_data_parallel.h"

#include "common/error.h"
#include "runtime/ddp/reducer.h"

namespace lockstep {
namespace {

// What ranks must have chosen alike, as the check across ranks compares it.
std::string choices_of(const DistributedDataParallelOptions& options, std::size_t buffers) {
  return fmt::format(
      "(no parameter, but options: average={} bucket_bytes={} first_bucket_bytes={} broadcast_buffers={} "
      "find_unused_parameters={} rebuild_buckets={}, {} buffers)",
      options.average == Average::tokens ? "tokens" : "ranks", options.bucket_bytes,
      options.first_bucket_bytes, options.broadcast_buffers, options.find_unused_parameters,
      options.rebuild_buckets, buffers);
}

std::vector<torch::Tensor> tensors_of(const std::vector<ddp::NamedTensor>& named) {
  std::vector<torch::Tensor> tensors;
  for (const auto& entry : named) tensors.push_back(entry.tensor);
  return tensors;
}

}  // namespace

DistributedDataParallelBase::DistributedDataParallelBase(torch::nn::Module& module, World& world,
                                                         const DistributedDataParallelOptions& options)
    : world_(world), module_(module), options_(options) {
  auto& communicator = world.communicator();
  ddp::check_on_cpu(module);
  const auto parameters = ddp::named_parameters_of(module);
  ddp::check_replicas_alike(communicator, parameters, choices_of(options, module.buffers().size()));
  ddp::broadcast_from_first(communicator, tensors_of(parameters), "initial parameters");
  ddp::broadcast_from_first(communicator, module.buffers(), "initial buffers");
  reducer_ = std::make_unique<ddp::Reducer>(communicator, world.timer(), parameters, options, sync_);
}

DistributedDataParallelBase::~DistributedDataParallelBase() = default;

void DistributedDataParallelBase::before_forward() {
  if (!sync_ || !options_.broadcast_buffers || !module_.is_training() || world_.size() == 1) return;
  const auto scope = world_.timer().phase(profile::Phase::comm_exposed);
  ddp::broadcast_from_first(world_.communicator(), module_.buffers(), "buffers");
}

void DistributedDataParallelBase::backward(const torch::Tensor& loss_sum, std::int64_t loss_tokens) {
  if (options_.average != Average::tokens) {
    fail_usage(
        "backward was given a number of tokens, but gradients are averaged by ranks; choose Average::tokens, "
        "or call backward(loss)");
  }
  run_backward(loss_sum, loss_tokens);
}

void DistributedDataParallelBase::backward(const torch::Tensor& loss) {
  if (options_.average != Average::ranks) {
    fail_usage(
        "backward was given no number of tokens, but gradients are averaged by tokens; call "
        "backward(loss_sum, loss_tokens), or choose Average::ranks");
  }
  run_backward(loss, 0);
}

void DistributedDataParallelBase::run_backward(const torch::Tensor& loss, std::int64_t tokens) {
  if (!loss.defined() || loss.numel() != 1) fail_usage("backward needs a loss with exactly one element");
  if (!loss.requires_grad()) {
    fail_usage(
        "the loss depends on no parameter that is trained; for a micro-batch without data call skip()");
  }
  const auto scope = world_.timer().phase(profile::Phase::backward);
  reducer_->begin(tokens);
  loss.backward(torch::full_like(loss, reducer_->loss_factor()));
  reducer_->finish();
}

void DistributedDataParallelBase::skip() {
  before_forward();
  const auto scope = world_.timer().phase(profile::Phase::backward);
  reducer_->skip();
}

std::int64_t DistributedDataParallelBase::tokens_of_last_step() const {
  return reducer_->tokens().tokens_of_last_step();
}

}  // namespace lockstep
