#include "runtime/ddp/distributed_data_parallel.h"

#include "common/error.h"
#include "runtime/ddp/device.h"
#include "runtime/ddp/known_parameters.h"
#include "runtime/ddp/reducer.h"
#include "runtime/ddp/replicas.h"

namespace lockstep {
namespace {

constexpr const char* kBuildAlike = "build the same model with the same options on every rank";

// What ranks must have chosen alike.
std::vector<ddp::Trait> traits_of(const DistributedDataParallelOptions& options) {
  return {{"option average", options.average == Average::tokens ? "tokens" : "ranks"},
          {"option bucket_cap_mb", fmt::to_string(options.bucket_cap_mb)},
          {"option first_bucket_bytes", fmt::to_string(options.first_bucket_bytes)},
          {"option broadcast_buffers", fmt::to_string(options.broadcast_buffers)},
          {"option find_unused_parameters", fmt::to_string(options.find_unused_parameters)},
          {"option static_graph", fmt::to_string(options.static_graph)},
          {"option rebuild_buckets", fmt::to_string(options.rebuild_buckets)},
          {"option autotune_buckets", fmt::to_string(options.autotune_buckets)}};
}

}  // namespace

DistributedDataParallelBase::DistributedDataParallelBase(torch::nn::Module& module, World& world,
                                                         const DistributedDataParallelOptions& given)
    : world_(world), module_(module) {
  auto& communicator = world.communicator();
  communicator.set_step(0);  // what an earlier DistributedDataParallel has counted
  auto options = given;
  if (at::globalContext().deterministicAlgorithms()) options.autotune_buckets = false;
  const torch::Device device = ddp::device_of(module);
  ddp::check_alike(communicator, traits_of(options), "options", kBuildAlike);
  of_tensors_ = &ddp::communicator_for(world, device);
  const auto parameters = make_alike("the model's description");
  reducer_ =
      std::make_unique<ddp::Reducer>(communicator, *of_tensors_, world.timer(), parameters, options, sync_);
  known_ = std::make_unique<ddp::KnownParameters>(module);
}

DistributedDataParallelBase::~DistributedDataParallelBase() = default;

const DistributedDataParallelOptions& DistributedDataParallelBase::options() const {
  return reducer_->options();
}

void DistributedDataParallelBase::register_comm_hook(std::shared_ptr<CommHook> hook) {
  reducer_->register_comm_hook(std::move(hook));
}

// Checks parameters and buffers across ranks, and gives everyone rank 0's.
std::vector<ddp::NamedTensor> DistributedDataParallelBase::make_alike(std::string_view why) {
  auto& communicator = world_.communicator();
  auto parameters = ddp::named_parameters_of(module_);
  const auto buffers = ddp::named_buffers_of(module_);
  auto traits = ddp::traits_of("parameter", parameters);
  // What a rank refuses must be refused by all, so it is compared before.
  for (std::size_t i = 0; reducer_ && i < traits.size(); ++i) {
    if (reducer_->accumulated_in_another_shape(parameters[i].tensor))
      traits[i].value += " (with a gradient accumulated in another shape)";
  }
  const char* const remedy =
      reducer_ ? "change the model in the same way, between the same steps, on all ranks" : kBuildAlike;
  ddp::check_alike(communicator, traits, why, remedy);
  ddp::check_alike(communicator, ddp::traits_of("buffer", buffers), why, remedy);
  ddp::refuse_unwritable("parameter", parameters);
  ddp::refuse_unwritable("buffer", buffers);
  ddp::broadcast_from(*of_tensors_, 0, parameters, "parameter");
  ddp::broadcast_from(*of_tensors_, 0, buffers, "buffer");
  return parameters;
}

// A rank that finds a change asks for operations that the others do not expect unless they find one too; the
// communicator then names what each asked for.
void DistributedDataParallelBase::adopt_changes() {
  const std::string change = known_->change_in(module_, !reducer_->hook_moves_parameters());
  if (change.empty()) return;
  if (join_) {
    fail_usage(
        "the model was changed inside join (parameter {}), where ranks may have ended; change it before",
        change);
  }
  const torch::Device device = ddp::device_of(module_);
  if ((device.is_cuda() ? device.index() : -1) != of_tensors_->device()) {
    fail_usage(
        "the model was moved to {} after DistributedDataParallel was made (parameter {}); make "
        "DistributedDataParallel anew on all ranks",
        device.str(), change);
  }
  reducer_->attach(make_alike(fmt::format("a changed model ({})", change)));
  known_ = std::make_unique<ddp::KnownParameters>(module_);
}

bool DistributedDataParallelBase::broadcasts_buffers() const {
  return broadcast_due_ && options().broadcast_buffers && module_.is_training() &&
         torch::GradMode::is_enabled() && world_.size() > 1 && !module_.buffers().empty();
}

void DistributedDataParallelBase::broadcast_buffers_of(int root) {
  const auto scope = world_.timer().phase(profile::Phase::comm_exposed);
  ddp::broadcast_from(*of_tensors_, root, ddp::named_buffers_of(module_), "buffer");
}

void DistributedDataParallelBase::broadcast_buffers() {
  if (join_)
    fail_usage("broadcast_buffers was called inside join, where ranks may have ended; call it after");
  broadcast_buffers_of(0);
}

void DistributedDataParallelBase::before_forward() {
  if (torch::GradMode::is_enabled()) {
    reducer_->before_forward();
    adopt_changes();
  }
  const bool broadcasts = broadcasts_buffers();
  int root = 0;
  if (join_) {
    root = join_->announce(
        {.synchronises = sync_ && torch::GradMode::is_enabled(), .broadcasts_buffers = broadcasts});
  }
  if (broadcasts) broadcast_buffers_of(root);
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
  const std::string change = known_->change_in(module_, !reducer_->hook_moves_parameters());
  if (!change.empty()) {
    fail_usage(
        "forward itself changed the model (parameter {}), whose gradients would not be summed in this "
        "backward; call forward once before DistributedDataParallel is made",
        change);
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
    ddp::Reducer& reducer;
    ~End() {
      join.reset();
      reducer.count_steps(true);
    }
  } const end{join_, *reducer_};
  reducer_->count_steps(false);
  auto& communicator = world_.communicator();
  join_ = std::make_unique<ddp::Join>(communicator, reducer_->rank_factor(), options);
  loop();
  for (ddp::Join::Plan plan; join_->shadow(plan);) {
    if (plan.broadcasts_buffers) broadcast_buffers_of(join_->authority());
    if (plan.synchronises) reducer_->shadow();
  }
  broadcast_due_ = true;  // ranks ended after different steps and must agree again
  const int root = join_->authority();
  ddp::broadcast_from(*of_tensors_, root, ddp::named_parameters_of(module_), "final parameter");
  ddp::broadcast_from(*of_tensors_, root, ddp::named_buffers_of(module_), "final buffer");
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
  const ddp::BackwardCall call;
  reducer_->begin(tokens);
  loss.backward(torch::full_like(loss, reducer_->loss_factor()));
  reducer_->finish();
}

void DistributedDataParallelBase::skip() {
  const torch::AutoGradMode as_in_training(true);
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
