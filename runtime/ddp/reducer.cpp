#include "runtime/ddp/reducer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/error.h"
#include "runtime/comm/job_end.h"
#include "runtime/ddp/device.h"

namespace lockstep::ddp {
namespace {

// Keeps the memory of operations whose model was destroyed after an exception. They cannot be cancelled, and
// they wait for other ranks.
void keep_forever(CommFuture future, std::optional<FlatBucket> flat) {
  static auto* const kept = new std::vector<std::pair<CommFuture, std::optional<FlatBucket>>>;
  kept->emplace_back(std::move(future), std::move(flat));
}

// Once. It does not end the job: a program may average weights in place of gradients.
void print_own_step() {
  static bool printed = false;
  if (std::exchange(printed, true)) return;
  comm::print_line(
      "the optimizer's last step had gradients of this rank only, because all backwards before it were under no_sync(): run the last micro-batch of each step without it, as ddp.no_sync_unless(last) does (docs/users/ddp.md)");
}

// Another tensor on the same memory counts too: Module::zero_grad() makes one.
bool lies_in(const torch::Tensor& gradient, const torch::Tensor& view) {
  return gradient.is_same(view) ||
         (gradient.data_ptr() == view.data_ptr() && gradient.strides() == view.strides());
}

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  constexpr std::uint64_t kPrime = 0x100000001b3;  // FNV's
  return (hash ^ value) * kPrime;
}

// The offset of an element, in elements; `index` counts the elements row by row.
std::int64_t offset_of(const torch::Tensor& tensor, std::int64_t index) {
  std::int64_t offset = 0;
  for (std::int64_t i = tensor.dim() - 1; i >= 0; --i) {
    offset += index % tensor.size(i) * tensor.stride(i);
    index /= tensor.size(i);
  }
  return offset;
}

// A number that changes when the tensor (in host memory) changes. It is made of a few elements, which are the
// same on all ranks. LibTorch's own count of changes would miss changes through data(), such as those of
// LibTorch's SGD, and count changes that one rank undoes, such as averaged weights during an evaluation.
std::uint64_t sample_of(const torch::Tensor& tensor) {
  constexpr std::int64_t kSteps = 4;  // between the elements read
  std::uint64_t sample = 0;
  if (tensor.numel() == 0) return sample;
  const auto* const first = static_cast<const char*>(tensor.data_ptr());
  const auto size = static_cast<std::int64_t>(tensor.itemsize());
  const std::int64_t last = tensor.numel() - 1;
  for (std::int64_t i = 0; i <= kSteps; ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, first + offset_of(tensor, last * i / kSteps) * size,
                std::min(sizeof bits, tensor.itemsize()));
    sample = mix(sample, bits);
  }
  return sample;
}

bool any_nonzero(const std::vector<torch::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> found;
  for (const auto& tensor : tensors) found.push_back(tensor.ne(0).any());
  return torch::stack(found).any().item<bool>();
}

}  // namespace

Reducer::Reducer(comm::Communicator& host_communicator, comm::Communicator& device_communicator,
                 profile::StepTimer& timer, const std::vector<NamedTensor>& parameters,
                 const DistributedDataParallelOptions& options, const bool& sync)
    : host_communicator_(host_communicator),
      device_communicator_(device_communicator),
      timer_(timer),
      options_(options),
      sync_(sync),
      average_(host_communicator.size()),
      device_factor_(device_communicator),
      message_(host_communicator),
      replica_check_(host_communicator, device_communicator, options.check_replicas_every),
      observer_(host_communicator, timer),
      self_(this, [](Reducer* /*not owned*/) {}) {
  if (!(options.bucket_cap_mb > 0)) {
    fail_usage("bucket_cap_mb is {}; it must be more than 0", options.bucket_cap_mb);
  }
  attach(parameters);
  if (on_device()) observer_.use_clocks(clocks_of(parameters.front().tensor.device()));
}

Reducer::~Reducer() {
  for (auto& bucket : buckets_) {
    const auto& works = bucket.future.works;
    if (std::all_of(works.begin(), works.end(), [](const auto& work) { return work->done(); })) continue;
    keep_forever(std::move(bucket.future), std::move(bucket.flat));
  }
}

void Reducer::register_comm_hook(std::shared_ptr<CommHook> hook) {
  if (comm_hook_) fail_usage("register_comm_hook was called twice; a model can have one hook");
  if (!learning_) fail_usage("register_comm_hook must be called before the first backward");
  comm_hook_ = std::move(hook);
}

void Reducer::reset_after_throw() {
  if (syncing()) {
    fail(
        "the previous synchronised backward threw, so this rank's gradients are lost and other ranks may wait for it; end the job, or construct a new DistributedDataParallel on all ranks");
  }
  state_ = State::idle;
}

void Reducer::arm_from(const std::vector<torch::Tensor>& outputs) {
  // Without synchronisation the graph of this forward is not walked. Until its own backward has run, the
  // graph may be part of the next synchronised backward, which then must not assume that any parameter is
  // unused.
  std::shared_ptr<bool> unseen;
  if (options_.find_unused_parameters && !options_.static_graph && !sync_) {
    unseen = std::make_shared<bool>(true);
    ++unseen_forwards_;
  }
  call_when_reached(outputs, [weak = std::weak_ptr<Reducer>(self_), unseen] {
    const auto reducer = weak.lock();
    if (!reducer) return;
    if (reducer->sync_) reducer->arm();
    if (unseen && *unseen && !reducer->sync_) {
      *unseen = false;
      if (reducer->unseen_forwards_ > 0) --reducer->unseen_forwards_;
    }
  });
  if (!options_.find_unused_parameters || learning_ || !sync_) return;
  const auto reached = hooks_->reached_from(outputs);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (reached[i]) parameters_[i].reached = true;
  }
  graph_walked_ = true;
}

void Reducer::begin(Averaging mode, std::int64_t count) {
  reset_after_throw();
  if (mode != Averaging::over_ranks) refuse_averaged_gradients();
  average_.begin(mode, count);
  begin_backward();
}

// After a synchronised backward by count: throws unless the program has changed a gradient since. It may zero some of
// them only, as with two optimizers.
void Reducer::refuse_averaged_gradients() {
  if (!gradients_averaged_) return;
  bool nonzero = false;
  std::vector<torch::Tensor> on_devices;
  const bool unchanged = std::all_of(parameters_.begin(), parameters_.end(), [&](const Parameter& parameter) {
    if (parameter.averaged == nullptr) return true;
    const torch::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined() || gradient.data_ptr() != parameter.averaged ||
        gradient._version() != parameter.averaged_version)
      return false;
    // Perhaps zeroed through data(), which counts no version.
    if (on_device()) {
      on_devices.push_back(gradient);
    } else {
      nonzero = nonzero || sample_of(gradient) != 0;
    }
    return true;
  });
  // The host waits for the device only in a program that leaves all gradients as they were, or zeroes them that way.
  if (unchanged && !on_devices.empty()) nonzero = any_nonzero(on_devices);
  if (unchanged && nonzero) {
    fail_usage(
        "the gradients of the last synchronised backward would be averaged by count again, because they have not been zeroed; run all micro-batches of an optimizer step but the last one under no_sync(), and call zero_grad() after each optimizer step (docs/users/ddp.md)");
  }
  gradients_averaged_ = false;
}

// Queues finish() at the end of the current graph task. Under torch::autograd::grad no gradient is
// accumulated, so finish() has nothing to do.
void Reducer::arm() {
  if (state_ != State::idle) return;
  state_ = State::armed;
  call_at_end_of_backward([weak = std::weak_ptr<Reducer>(self_)] {
    if (const auto reducer = weak.lock()) reducer->finish();
  });
}

void Reducer::begin_plain_backward(const std::string& parameter) {
  if (CountedBackward::is_running()) {
    fail_usage(
        "ddp.backward(loss_sum, count) of one DistributedDataParallel reached parameter '{}' of another one, whose count is not known; wrap one module that contains both, or call loss.backward()",
        parameter);
  }
  average_.begin(Averaging::over_ranks, 0);
  arm();
  begin_backward();
}

void Reducer::begin_backward() {
  count_step();
  if (sync_) {
    begin_sync();
  } else {
    state_ = State::accumulating;
  }
}

void Reducer::count_steps(bool on) {
  if (!on) count_step();  // some ranks may have counted this step in a micro-batch
  counts_steps_ = on;
  last_sample_.reset();
  host_communicator_.set_step(on ? static_cast<std::uint64_t>(step_) : 0);
}

std::uint64_t Reducer::sample_parameters() const {
  std::uint64_t sample = 0;
  for (const auto& parameter : parameters_) sample = mix(sample, sample_of(parameter.tensor));
  return sample;
}

// If an optimizer did a step since the last backward, it changed the parameters, and on every rank alike.
// Unsynchronised backwards count too, since a rank may by mistake run a whole optimizer step under no_sync. On a
// device the host cannot look at the parameters without waiting: begin_sync() counts the synchronised backwards.
void Reducer::count_step() {
  if (!counts_steps_ || on_device()) return;
  const std::uint64_t sample = sample_parameters();
  if (last_sample_ != sample) {
    const bool own = last_sample_ && !sync_ && host_communicator_.rank() == 0;
    if (own &&
        std::any_of(parameters_.begin(), parameters_.end(), [](const auto& each) { return each.used; }))
      print_own_step();
    ++step_;
  }
  last_sample_ = sample;
}

void Reducer::send_message() {
  auto step = average_.close_step();
  message_.send({.average = step.mine, .durations = observer_.to_compare()}, std::move(step.decide),
                on_device() ? StepMessage::Decide::received : StepMessage::Decide::at_once);
  device_factor_.forget();
  if (receives_later() && average_.mode() == Averaging::by_count)
    device_factor_.begin(parameters_.front().tensor.device(), step.mine.count, 1 / average_.loss_factor());
}

bool Reducer::receives_later() const {
  return on_device() && average_.agreed();
}

// Of this step, or on a device of the step before.
void Reducer::receive_messages() {
  while (message_.pending() > (receives_later() ? 1 : 0)) {
    summary_ = message_.receive();
    observer_.received(summary_.durations);
    average_.adopt(summary_.average);
  }
}

void Reducer::begin_sync() {
  if (counts_steps_) {
    if (on_device()) ++step_;
    host_communicator_.set_step(static_cast<std::uint64_t>(step_));
  }
  state_ = learning_ || !average_.agreed() ? State::collecting : State::launching;
  next_bucket_ = 0;
  summary_ = {};
  arrivals_.clear();
  observer_.begin(parameters_.size());
  for (auto& parameter : parameters_) {
    parameter.ready = parameter.assumed_unused = parameter.had_none = false;
    parameter.arrived = 0;
  }
  for (auto& bucket : buckets_) bucket.pending = bucket.parameters.size();
  send_message();
  assume_unused();
}

// Parameters that will get no gradient in this backward are ready now, so that buckets need not wait for its
// end.
void Reducer::assume_unused() {
  if (learning_ || !(options_.static_graph || graph_walked_) || unseen_forwards_ > 0) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (options_.static_graph ? parameter.expected > 0 : parameter.reached) continue;
    parameter.assumed_unused = true;
    mark_ready(i);
  }
  launch_ready_buckets();
}

void Reducer::on_gradient(std::size_t index) {
  if (torch::GradMode::is_enabled()) {
    fail_usage(
        "backward was called with create_graph, which would replace the gradients in the buckets; compute gradients of gradients with torch::autograd::grad");
  }
  Parameter& parameter = parameters_[index];
  if (state_ == State::idle || state_ == State::armed) begin_plain_backward(parameter.name);
  parameter.used = true;
  if (syncing()) {
    ++parameter.arrived;
    observer_.gradient_ready(index);
    if (learning_) {
      arrivals_.push_back(index);
    } else if (parameter.ready) {
      arrived_again(index);
    } else if (parameter.arrived >= parameter.expected) {
      arrivals_.push_back(index);
      mark_ready(index);
      launch_ready_buckets();
    }
  }
  host_communicator_.progress();
}

// The parameter got more gradients than expected, which is harmless until its bucket is being reduced.
void Reducer::arrived_again(std::size_t index) {
  const Parameter& parameter = parameters_[index];
  if (options_.static_graph) {
    fail(
        "parameter '{}' got {} gradients in this backward and {} in the first one; with static_graph every step must use the same parameters equally often",
        parameter.name, parameter.arrived, parameter.expected);
  }
  if (parameter.bucket >= next_bucket_) return take_gradient(index);
  if (parameter.assumed_unused) {
    fail(
        "parameter '{}' got a gradient, but find_unused_parameters did not find it in the graph of forward's outputs; reentrant checkpointing hides the parameters that it uses: set static_graph instead",
        parameter.name);
  }
  fail(
      "parameter '{}' got another gradient after the reduction of its bucket had begun; it got {} in the first step, and must get as many in every synchronised backward",
      parameter.name, parameter.expected);
}

void Reducer::mark_ready(std::size_t index) {
  Parameter& parameter = parameters_[index];
  take_gradient(index);
  parameter.ready = true;
  --buckets_[parameter.bucket].pending;
}

// Puts the gradient into the bucket and, with gradient_as_bucket_view, makes .grad a view of it.
void Reducer::take_gradient(std::size_t index) {
  Parameter& parameter = parameters_[index];
  torch::Tensor& gradient = parameter.tensor.mutable_grad();
  if (gradient.defined() && gradient.is_sparse()) {
    fail_usage(
        "parameter '{}' has a sparse gradient, which is not supported; set sparse(false) in the options of its embedding",
        parameter.name);
  }
  parameter.had_none = parameter.had_none || !gradient.defined();
  const torch::Tensor& view = buckets_[parameter.bucket].flat->view(parameter.slot);
  if (!gradient.defined()) {
    view.zero_();
  } else if (!lies_in(gradient, view)) {
    view.copy_(gradient);
  } else {
    return;
  }
  if (options_.gradient_as_bucket_view) gradient = view;
}

void Reducer::launch_ready_buckets() {
  if (state_ != State::launching) return;
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0; ++next_bucket_)
    launch(next_bucket_);
}

void Reducer::launch(std::size_t index) {
  Bucket& bucket = buckets_[index];
  observer_.launching(index, bucket.parameters, bucket.flat->buffer().bytes());
  const torch::Tensor& gradients = bucket.flat->tensor();
  if (comm_hook_) {
    bucket.future = comm_hook_->start(*bucket.view, device_communicator_);
  } else if (on_device()) {
    if (device_factor_.known()) {
      device_factor_.multiply_before_reduction(gradients);
    } else if (const double factor = *factor_on_host(); factor != 1) {
      gradients.mul_(factor);
    }
    bucket.work = device_communicator_.all_reduce(bucket.flat->buffer(), bucket.flat->label(),
                                                  {.keep = bucket.flat->memory()});
  } else {
    // If backward throws, this object may be destroyed before the operation, which waits for other ranks,
    // ends.
    const auto factor = factor_on_host();
    bucket.work = device_communicator_.all_reduce(
        bucket.flat->buffer(), bucket.flat->label(),
        {.scale = factor.get(),
         .keep = std::make_shared<std::pair<std::shared_ptr<const double>, std::shared_ptr<void>>>(
             factor, bucket.flat->memory())});
  }
  observer_.launched();
}

// Of the reduced gradients. On a GPU the factor over ranks is read when a bucket is launched; the message that sets the
// other one comes later.
std::shared_ptr<const double> Reducer::factor_on_host() const {
  if (on_device() && average_.mode() == Averaging::over_ranks) return average_.rank_factor();
  return average_.factor();
}

// A hook may send anything, but one that moves parameters is a sharded optimizer's.
std::optional<record::Collective> Reducer::collective() const {
  if (!comm_hook_) return record::Collective::all_reduce;
  if (comm_hook_->moves_parameters()) return record::Collective::reduce_scatter;
  return std::nullopt;
}

void Reducer::finish() {
  if (syncing()) finish_sync(false);
  state_ = State::idle;
}

void Reducer::contribute_zeros() {
  for (auto& parameter : parameters_) parameter.tensor.mutable_grad() = torch::Tensor();
  skip();
}

void Reducer::discard() {
  reset_after_throw();
  average_.discard();
  const torch::NoGradGuard no_grad;
  for (auto& parameter : parameters_) {
    parameter.used = parameter.reached = false;
    torch::Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined()) gradient.zero_();
  }
  graph_walked_ = false;
  unseen_forwards_ = 0;
}

void Reducer::skip() {
  begin(Averaging::undecided, 0);
  if (syncing()) finish_sync(true);
  state_ = State::idle;
}

}  // namespace lockstep::ddp
