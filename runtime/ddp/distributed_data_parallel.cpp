#include "runtime/ddp/distributed_data_parallel.h"

#include "common/error.h"
#include "runtime/ddp/device.h"
#include "runtime/ddp/reducer.h"

namespace lockstep {
namespace {

// What ranks must have chosen alike, as the check across ranks compares it.
std::string choices_of(const DistributedDataParallelOptions& options, std::size_t buffers) {
  return fmt::format(
      "(no parameter, but options: average={} bucket_cap_mb={} first_bucket_bytes={} broadcast_buffers={} "
      "find_unused_parameters={} static_graph={} rebuild_buckets={} autotune_buckets={}, {} buffers)",
      options.average == Average::tokens ? "tokens" : "ranks", options.bucket_cap_mb,
      options.first_bucket_bytes, options.broadcast_buffers, options.find_unused_parameters,
      options.static_graph, options.rebuild_buckets, options.autotune_buckets, buffers);
}

std::vector<torch::Tensor> tensors_of(const std::vector<ddp::NamedTensor>& named) {
  std::vector<torch::Tensor> tensors;
  for (const auto& entry : named) tensors.push_back(entry.tensor);
  return tensors;
}

}  // namespace

DistributedDataParallelBase::DistributedDataParallelBase(torch::nn::Module& module, World& world,
                                                         const DistributedDataParallelOptions& given)
    : world_(world), module_(module) {
  auto& communicator = world.communicator();
  auto options = given;
  if (at::globalContext().deterministicAlgorithms()) options.autotune_buckets = false;
  const torch::Device device = ddp::device_of(module);
  const auto parameters = ddp::named_parameters_of(module);
  ddp::check_replicas_alike(communicator, parameters, choices_of(options, module.buffers().size()));
  of_tensors_ = &ddp::communicator_for(world, device);
  ddp::broadcast_from(*of_tensors_, 0, tensors_of(parameters), "initial parameters");
  ddp::broadcast_from(*of_tensors_, 0, module.buffers(), "initial buffers");
  reducer_ =
      std::make_unique<ddp::Reducer>(communicator, *of_tensors_, world.timer(), parameters, options, sync_);
}

DistributedDataParallelBase::~DistributedDataParallelBase() = default;

const DistributedDataParallelOptions& DistributedDataParallelBase::options() const {
  return reducer_->options();
}

void DistributedDataParallelBase::register_comm_hook(std::shared_ptr<CommHook> hook) {
  reducer_->register_comm_hook(std::move(hook));
}

bool DistributedDataParallelBase::broadcasts_buffers() const {
  return broadcast_due_ && options().broadcast_buffers && module_.is_training() &&
         torch::GradMode::is_enabled() && world_.size() > 1 && !module_.buffers().empty();
}

void DistributedDataParallelBase::broadcast_buffers(int root) {
  const auto scope = world_.timer().phase(profile::Phase::comm_exposed);
  ddp::broadcast_from(*of_tensors_, root, module_.buffers(), "buffers");
}

void DistributedDataParallelBase::before_forward() {
  if (torch::GradMode::is_enabled()) reducer_->before_forward();
  const bool broadcasts = broadcasts_buffers();
  int root = 0;
  if (join_) {
    root = join_->announce(
        {.synchronises = sync_ && torch::GradMode::is_enabled(), .broadcasts_buffers = broadcasts});
  }
  if (broadcasts) broadcast_buffers(root);
  // A forward without gradients or outside training is no step; one rank may do it alone.
  if (module_.is_training() && torch::GradMode::is_enabled()) broadcast_due_ = sync_;
}

void DistributedDataParallelBase::after_forward(const std::vector<torch::Tensor>& outputs, bool known) {
  if (!torch::GradMode::is_enabled()) return;
  if (!known && options().find_unused_parameters && !options().static_graph) {
    fail_usage(
        "find_unused_parameters cannot look into what forward returns; specialise lockstep::OutputTensors "
        "for its type (runtime/ddp/outputs.h)");
  }
  reducer_->watch(outputs);
}

void DistributedDataParallelBase::join(const std::function<void()>& loop, const JoinOptions& options) {
  if (!options.enable) return loop();
  if (reducer_->options().average != Average::ranks) {
    fail_usage(
        "join divides by a number of ranks, but gradients are averaged by tokens; call skip() where a rank "
        "has no data, or choose Average::ranks");
  }
  if (join_) fail_usage("join was called inside join");
  if (const auto why = reducer_->refuses_join(); !why.empty()) fail_usage("join: {}", why);
  struct End {
    std::unique_ptr<ddp::Join>& join;
    ~End() { join.reset(); }
  } const end{join_};
  auto& communicator = world_.communicator();
  join_ = std::make_unique<ddp::Join>(communicator, reducer_->rank_factor(), options);
  loop();
  for (ddp::Join::Plan plan; join_->shadow(plan);) {
    if (plan.broadcasts_buffers) broadcast_buffers(join_->authority());
    if (plan.synchronises) reducer_->shadow();
  }
  broadcast_due_ = true;  // ranks ended after different steps and must agree again
  const int root = join_->authority();
  ddp::broadcast_from(*of_tensors_, root, tensors_of(ddp::named_parameters_of(module_)), "final parameters");
  ddp::broadcast_from(*of_tensors_, root, module_.buffers(), "final buffers");
}

void DistributedDataParallelBase::backward(const torch::Tensor& loss_sum, std::int64_t loss_tokens) {
  if (options().average != Average::tokens) {
    fail_usage(
        "backward was given a number of tokens, but gradients are averaged by ranks; choose Average::tokens, "
        "or call backward(loss)");
  }
  run_backward(loss_sum, loss_tokens);
}

void DistributedDataParallelBase::backward(const torch::Tensor& loss) {
  if (options().average != Average::ranks) {
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

void DistributedDataParallelBase::discard() {
  reducer_->discard();
}

std::int64_t DistributedDataParallelBase::tokens_of_last_step() const {
  return reducer_->tokens().tokens_of_last_step();
}

}  // namespace lockstep
