#include "runtime/ddp/distributed_data_parallel.h"

#include <cstdio>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "runtime/comm/alike.h"
#include "runtime/comm/process_settings.h"
#include "runtime/ddp/buffer_broadcast.h"
#include "runtime/ddp/device.h"
#include "runtime/ddp/join.h"
#include "runtime/ddp/known_parameters.h"
#include "runtime/ddp/model_faults.h"
#include "runtime/ddp/reducer.h"
#include "runtime/ddp/replicas.h"
#include "runtime/ddp/seen_tensors.h"
#include "runtime/profile/operators.h"

namespace lockstep {
namespace {

constexpr const char* kModels = "the ranks' models";
constexpr const char* kBuildAlike = "build the same model with the same options on every rank";
constexpr const char* kJoinWithCount =
    "join divides gradients by a number of ranks, but ddp.backward(loss_sum, count) averages by count; call loss.backward() inside join, or call skip() on a rank without data instead of join";

// Whether the model is checked on this rank.
bool checks(const DistributedDataParallelOptions& options, int rank) {
  return environment::is_on("LOCKSTEP_CHECK", options.check_model) && rank == 0;
}

// The options that must be the same on all ranks.
std::vector<comm::Property> properties_of(const DistributedDataParallelOptions& options) {
  return {{"option bucket_cap_mb", fmt::to_string(options.bucket_cap_mb)},
          {"option first_bucket_bytes", fmt::to_string(options.first_bucket_bytes)},
          {"option broadcast_buffers", fmt::to_string(options.broadcast_buffers)},
          {"option find_unused_parameters", fmt::to_string(options.find_unused_parameters)},
          {"option static_graph", fmt::to_string(options.static_graph)},
          {"option check_replicas_every", fmt::to_string(options.check_replicas_every)}};
}

}  // namespace

std::vector<torch::Tensor> parameters_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> parameters;
  SeenTensors seen;
  for (const auto& parameter : module.parameters()) {
    if (seen.add(parameter)) parameters.push_back(parameter);
  }
  return parameters;
}

DistributedDataParallelBase::DistributedDataParallelBase(torch::nn::Module& module, World& world,
                                                         const DistributedDataParallelOptions& options)
    : world_(world), module_(module) {
  auto& communicator = world.communicator();
  communicator.set_step(0);  // an earlier DistributedDataParallel may have counted steps
  const torch::Device device = ddp::device_of(module);
  comm::check_alike(communicator, kModels, properties_of(options), "options", kBuildAlike);
  if (device.is_cpu()) world_.timer().use_cpu();
  device_communicator_ = &ddp::communicator_for(world, device);
  const auto parameters = synchronise_replicas("the model's description");
  reducer_ = std::make_unique<ddp::Reducer>(communicator, *device_communicator_, world.timer(), parameters,
                                            options, sync_);
  known_ = std::make_unique<ddp::KnownParameters>(module);
  buffer_broadcast_ = std::make_unique<ddp::BufferBroadcast>(*device_communicator_, world.timer());
  world.timer().add_model(reducer_.get());
  check_due_ = checks(options, world.rank());
  profile::add_model(module);
}

DistributedDataParallelBase::~DistributedDataParallelBase() {
  world_.timer().remove_model(reducer_.get());
  profile::remove_model(module_);
}

profile::StepTimer::Scope DistributedDataParallelBase::forward_scope() {
  auto& timer = world_.timer();
  if (check_due_ && torch::GradMode::is_enabled() && module_.is_training()) {
    check_due_ = false;
    try {
      first_forward_ = std::make_unique<ddp::FirstForward>(module_);
    } catch (const UsageError&) {  // a debug tool looks at this forward: check the next one
      check_due_ = true;
    }
  }
  return torch::GradMode::is_enabled() ? timer.phase(profile::Phase::forward)
                                       : timer.begin_forward_without_gradients();
}

const DistributedDataParallelOptions& DistributedDataParallelBase::options() const {
  return reducer_->options();
}

const SyncTrace& DistributedDataParallelBase::trace() const {
  return reducer_->observer().trace();
}

void DistributedDataParallelBase::register_comm_hook(std::shared_ptr<CommHook> hook) {
  reducer_->register_comm_hook(std::move(hook));
}

// Compares parameters and buffers between ranks, and gives all ranks rank 0's.
std::vector<ddp::NamedTensor> DistributedDataParallelBase::synchronise_replicas(std::string_view why) {
  auto& communicator = world_.communicator();
  auto parameters = ddp::named_parameters_of(module_);
  const auto buffers = ddp::named_buffers_of(module_);
  auto properties = ddp::properties_of("parameter", parameters);
  // If one rank must refuse a parameter, all must, so the reason is part of the comparison.
  for (std::size_t i = 0; reducer_ && i < properties.size(); ++i) {
    if (reducer_->accumulated_in_another_shape(parameters[i].tensor))
      properties[i].value += " (with a gradient accumulated in another shape)";
  }
  const char* const remedy =
      reducer_ ? "change the model in the same way, between the same steps, on all ranks" : kBuildAlike;
  comm::check_alike(communicator, kModels, properties, why, remedy);
  comm::check_alike(communicator, kModels, ddp::properties_of("buffer", buffers), why, remedy);
  ddp::refuse_unwritable("parameter", parameters);
  ddp::refuse_unwritable("buffer", buffers);
  ddp::broadcast_from(*device_communicator_, 0, parameters, "parameter");
  ddp::broadcast_from(*device_communicator_, 0, buffers, "buffer");
  return parameters;
}

// A rank that finds a change asks for operations that the other ranks expect only if they find one too. If
// they do not, the communicator reports what each rank asked for.
void DistributedDataParallelBase::adopt_changes() {
  const std::string change = known_->change_in(module_, !reducer_->hook_moves_parameters());
  if (change.empty()) return;
  if (join_) {
    fail_usage(
        "the model was changed inside join (parameter {}), where other ranks may have ended already; change it before join",
        change);
  }
  const torch::Device device = ddp::device_of(module_);
  if ((device.is_cpu() ? -1 : device.index()) != device_communicator_->device()) {
    fail_usage(
        "the model was moved to {} after DistributedDataParallel was constructed (parameter {}); construct a new DistributedDataParallel on all ranks",
        device.str(), change);
  }
  reducer_->attach(synchronise_replicas(fmt::format("a changed model ({})", change)));
  known_ = std::make_unique<ddp::KnownParameters>(module_);
}

// Before this forward; none if it is not due.
std::vector<torch::Tensor> DistributedDataParallelBase::buffers_to_broadcast() const {
  const bool due = broadcast_due_ && options().broadcast_buffers && module_.is_training() &&
                   torch::GradMode::is_enabled() && world_.size() > 1;
  return due ? ddp::buffers_of(module_) : std::vector<torch::Tensor>{};
}

void DistributedDataParallelBase::broadcast_buffers_of(int root, const std::vector<torch::Tensor>& buffers) {
  const auto scope = world_.timer().phase(profile::Phase::comm_exposed);
  buffer_broadcast_->send(root, buffers);
}

void DistributedDataParallelBase::broadcast_buffers() {
  if (join_)
    fail_usage(
        "broadcast_buffers was called inside join, where other ranks may have ended already; call it after join");
  broadcast_buffers_of(0, ddp::buffers_of(module_));
}

void DistributedDataParallelBase::before_forward() {
  if (torch::GradMode::is_enabled()) {
    world_.timer().begin_training_forward(reducer_.get());
    reducer_->reset_after_throw();
    adopt_changes();
    known_->note_versions();
  }
  const auto buffers = buffers_to_broadcast();
  int root = 0;
  if (join_) {
    root = join_->announce(
        {.synchronises = sync_ && torch::GradMode::is_enabled(), .broadcasts_buffers = !buffers.empty()});
  }
  if (!buffers.empty()) broadcast_buffers_of(root, buffers);
  // A forward without gradients or outside training does not count as a step: one rank may do it alone.
  if (module_.is_training() && torch::GradMode::is_enabled()) broadcast_due_ = sync_;
}

void DistributedDataParallelBase::after_forward(const std::vector<torch::Tensor>& outputs, bool known) {
  if (!torch::GradMode::is_enabled()) {
    if (!module_.is_training()) world_.timer().end_evaluation_forward();
    return;
  }
  if (!known && options().find_unused_parameters && !options().static_graph) {
    fail_usage(
        "find_unused_parameters cannot find the tensors in forward's return type; specialise lockstep::OutputTensors for that type (runtime/ddp/outputs.h)");
  }
  const std::string change = known_->change_in(module_, !reducer_->hook_moves_parameters());
  if (!change.empty()) {
    fail_usage(
        "forward itself changed the model (parameter {}), so this backward would not sum all gradients; call forward once before constructing DistributedDataParallel",
        change);
  }
  // Ranks have different data, so their parameters would differ from now on.
  if (const std::string changed = known_->changed_values(); !changed.empty()) {
    fail_usage(
        "forward changed the values of parameter '{}', as torch::nn::Embedding with max_norm does; ranks see different data, so their models would differ: change parameters after the optimizer's step instead, in the same way on all ranks",
        changed);
  }
  reducer_->arm_from(outputs);
  if (first_forward_) print_findings(known ? outputs : std::vector<torch::Tensor>{});
}

void DistributedDataParallelBase::print_findings(const std::vector<torch::Tensor>& outputs) {
  ModelFindings findings = first_forward_->findings(outputs, options());
  const auto parameters = module_.parameters();
  const bool floats =
      !first_forward_->autocast() && !parameters.empty() && parameters.front().scalar_type() == torch::kFloat;
  const bool on_cpu = floats && parameters.front().is_cpu();
  const std::string unit = on_cpu ? comm::bfloat16_unit(read_text_file("/proc/cpuinfo")) : "";
  if (!unit.empty()) {
    findings.others.push_back(fmt::format(
        "the processor computes bfloat16 in hardware ({}): a forward under lockstep::Autocast(torch::kCPU) is usually faster",
        unit));
  }
  if (floats && !on_cpu &&
      at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST) {
    findings.others.emplace_back(
        "matrix products are float32 without TF32: a forward under lockstep::Autocast, or the setting matmul_precision = high, is usually several times as fast on a GPU");
  }
  const std::string text = findings.text();
  first_forward_.reset();
  std::string lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin) + 1;
    lines += "lockstep: check of the model: " + text.substr(begin, end - begin);
    begin = end;
  }
  std::fputs(lines.c_str(), stderr);
}

void DistributedDataParallelBase::join(const std::function<void()>& loop, const JoinOptions& options) {
  if (!options.enable) return loop();
  if (reducer_->average().mode() == ddp::Averaging::by_count) fail_usage("{}", kJoinWithCount);
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
  join_ = std::make_unique<ddp::Join>(communicator, reducer_->average().rank_factor(), options);
  loop();
  for (ddp::Join::Operations others; join_->take_part_without_data(others);) {
    if (others.broadcasts_buffers) broadcast_buffers_of(join_->newest_rank(), ddp::buffers_of(module_));
    if (others.synchronises) reducer_->contribute_zeros();
  }
  broadcast_due_ = true;  // ranks ended after different numbers of steps, so their buffers may differ
  const int root = join_->newest_rank();
  ddp::broadcast_from(*device_communicator_, root, ddp::named_parameters_of(module_), "final parameter");
  ddp::broadcast_from(*device_communicator_, root, ddp::named_buffers_of(module_), "final buffer");
}

void DistributedDataParallelBase::backward(const torch::Tensor& loss_sum, std::int64_t count) {
  if (join_) fail_usage("{}", kJoinWithCount);
  const ddp::CountedBackward call;
  run_backward(loss_sum, ddp::Averaging::by_count, count);
}

void DistributedDataParallelBase::backward(const torch::Tensor& loss) {
  run_backward(loss, ddp::Averaging::over_ranks, 0);
}

void DistributedDataParallelBase::run_backward(const torch::Tensor& loss, ddp::Averaging mode,
                                               std::int64_t count) {
  if (!loss.defined() || loss.numel() != 1) fail_usage("backward needs a loss with exactly one element");
  if (!loss.requires_grad()) {
    fail_usage(
        "the loss does not depend on any trained parameter; for a micro-batch without data call skip()");
  }
  const auto scope = world_.timer().phase(profile::Phase::backward);
  reducer_->begin(mode, count);
  world_.timer().add_backward_tokens(count);
  loss.backward(torch::full_like(loss, reducer_->average().loss_factor()));
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
  return reducer_->count_of_last_step();
}

}  // namespace lockstep
