#include "runtime/ddp/reducer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "common/error.h"
#include "runtime/comm/job_end.h"
#include "runtime/ddp/device.h"

namespace lockstep::ddp {
namespace {

// Once. It does not end the job: a program may average weights in place of gradients.
void print_own_step() {
  static bool printed = false;
  if (std::exchange(printed, true)) return;
  comm::print_line(
      "the optimizer's last step had gradients of this rank only, because all backwards before it were under no_sync(): run the last micro-batch of each step without it, as ddp.no_sync_unless(last) does (docs/users/ddp.md)");
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

// Converting a module does not convert .grad.
void fit_gradient(const torch::Tensor& parameter) {
  torch::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  if (gradient.sizes() != parameter.sizes()) {
    gradient = torch::Tensor();
  } else if (gradient.scalar_type() != parameter.scalar_type()) {
    gradient = gradient.to(parameter.scalar_type());
  }
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
  if (backward_ && comm_hook_) backward_->abandon();
}

void Reducer::register_comm_hook(std::shared_ptr<CommHook> hook) {
  if (comm_hook_) fail_usage("register_comm_hook was called twice; a model can have one hook");
  if (!expected_.empty()) fail_usage("register_comm_hook must be called before the first backward");
  comm_hook_ = std::move(hook);
}

bool Reducer::accumulated(const torch::Tensor& tensor) const {
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (parameters()[i].tensor.is_same(tensor)) return used_[i] != 0;
  }
  return false;
}

// The current step needs such a gradient, so it cannot just be dropped.
bool Reducer::accumulated_in_another_shape(const torch::Tensor& tensor) const {
  const torch::Tensor& gradient = tensor.grad();
  return gradient.defined() && gradient.sizes() != tensor.sizes() && accumulated(tensor);
}

void Reducer::attach(const std::vector<NamedTensor>& all) {
  const torch::NoGradGuard no_grad;
  std::vector<NamedTensor> trained;
  std::vector<std::uint8_t> used;
  for (const auto& [name, tensor] : all) {
    if (!tensor.requires_grad()) continue;
    static_cast<void>(data_type_of(tensor.scalar_type(), fmt::format("parameter '{}'", name)));
    if (accumulated_in_another_shape(tensor)) {
      fail_usage(
          "parameter '{}' has another shape than the gradient accumulated for it; change the model between optimizer steps, or call discard() first",
          name);
    }
    trained.push_back({name, tensor});
    used.push_back(accumulated(tensor) ? 1 : 0);
  }
  if (trained.empty()) fail_usage("the model has no parameter that requires a gradient");
  for (const auto& parameter : trained) fit_gradient(parameter.tensor);
  put_hooks_on(trained);
  buckets_.emplace(device_communicator_, options_, std::move(trained));

  // As before the first synchronised backward.
  expected_.clear();
  used_anywhere_ = std::make_shared<std::vector<std::uint8_t>>(used.size() + 1, std::uint8_t{1});
  ordered_ = false;
  used_ = std::move(used);
  reached_.clear();
  averaged_.clear();
  // Only ranks that accumulated gradients in the current step have counted it.
  host_communicator_.broadcast({&step_, 1, comm::DataType::i64}, 0, "the number of steps")->wait();
  last_sample_.reset();
}

// A graph that was recorded before one or several changes still leads to the old accumulators, whose
// gradients would not be summed. The old hooks refuse such a backward.
void Reducer::put_hooks_on(const std::vector<NamedTensor>& trained) {
  std::vector<torch::Tensor> tensors;
  for (const auto& parameter : trained) tensors.push_back(parameter.tensor);
  const auto accumulators = accumulators_of(tensors);
  if (hooks_) outdated_hooks_.push_back(std::move(hooks_));
  hooks_ = std::make_unique<GradientHooks>(
      accumulators, [this, trained, accumulators, attachment = ++attachments_](std::size_t i) {
        if (attachment != attachments_) return refuse_outdated(trained[i], accumulators[i]);
        on_gradient(i);
      });
}

void Reducer::refuse_outdated(const NamedTensor& parameter,
                              const torch_compat::NodeHandle& accumulator) const {
  const auto& accumulators = hooks_->accumulators();
  if (std::find(accumulators.begin(), accumulators.end(), accumulator) != accumulators.end()) return;
  const auto& [name, tensor] = parameter;
  if (std::any_of(parameters().begin(), parameters().end(),
                  [&tensor = tensor](const NamedTensor& known) { return known.tensor.is_same(tensor); })) {
    fail_usage(
        "this backward belongs to a forward that ran before the model was changed (parameter '{}' was loaded or converted); call forward again",
        name);
  }
  fail_usage(
      "parameter '{}' got a gradient, but it was frozen or is no longer registered; if forward ran before the model was changed, call it again; if forward still uses the parameter, register it again",
      name);
}

void Reducer::reset_after_throw() {
  if (backward_) {
    fail(
        "the previous synchronised backward threw, so this rank's gradients are lost and other ranks may wait for it; end the job, or construct a new DistributedDataParallel on all ranks");
  }
  state_ = State::idle;
}

void Reducer::arm_from(const std::vector<torch::Tensor>& outputs) {
  const auto forward = ++forwards_;
  const bool finds_unused = options_.find_unused_parameters && !options_.static_graph;
  // Without synchronisation the graph of this forward is not walked. Until its own backward has run, the
  // graph may be part of the next synchronised backward, which then must not assume that any parameter is
  // unused.
  if (finds_unused && !sync_) unseen_forwards_.insert(forward);
  call_when_reached(outputs, [weak = std::weak_ptr<Reducer>(self_), forward] {
    const auto reducer = weak.lock();
    if (!reducer) return;
    if (reducer->sync_) {
      reducer->arm();
    } else {
      reducer->unseen_forwards_.erase(forward);
    }
  });
  if (!finds_unused || !sync_) return;
  const auto reached = hooks_->reached_from(outputs);
  reached_.resize(reached.size());
  for (std::size_t i = 0; i < reached.size(); ++i) reached_[i] = reached_[i] || reached[i];
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
  std::vector<torch::Tensor> unchanged;
  for (const auto& [parameter, memory, version] : averaged_) {
    const torch::Tensor& gradient = parameters()[parameter].tensor.grad();
    if (!gradient.defined() || gradient.data_ptr() != memory || gradient._version() != version)
      return averaged_.clear();
    unchanged.push_back(gradient);
  }
  // Perhaps zeroed through data(), which counts no version. The host waits for a device only in a program that leaves all
  // gradients as they were, or zeroes them that way.
  const auto nonzero = [](const torch::Tensor& gradient) { return sample_of(gradient) != 0; };
  if (!unchanged.empty() &&
      (on_device() ? any_nonzero(unchanged) : std::any_of(unchanged.begin(), unchanged.end(), nonzero))) {
    fail_usage(
        "the gradients of the last synchronised backward would be averaged by count again, because they have not been zeroed; run all micro-batches of an optimizer step but the last one under no_sync(), and call zero_grad() after each optimizer step (docs/users/ddp.md)");
  }
  averaged_.clear();
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
  if (CountedBackward::running > 0) {
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
  state_ = State::running;
  if (!sync_) return;
  if (counts_steps_) {
    if (on_device()) ++step_;
    host_communicator_.set_step(static_cast<std::uint64_t>(step_));
  }
  const bool collects = expected_.empty() || !ordered_ || !average_.agreed();
  backward_ = std::make_unique<Backward>(*buckets_, options_, observer_, expected_, collects,
                                         [this](Bucket& bucket) { return reduce(bucket); });
  observer_.begin(parameters().size());
  send_message();
  if (collects || (!options_.static_graph && (reached_.empty() || !unseen_forwards_.empty()))) return;
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    if (options_.static_graph ? expected_[i] == 0 : !reached_[i]) backward_->assume_unused(i);
  }
  backward_->launch();
}

void Reducer::count_steps(bool on) {
  if (!on) count_step();  // some ranks may have counted this step in a micro-batch
  counts_steps_ = on;
  last_sample_.reset();
  host_communicator_.set_step(on ? static_cast<std::uint64_t>(step_) : 0);
}

// If an optimizer did a step since the last backward, it changed the parameters, and on every rank alike.
// Unsynchronised backwards count too, since a rank may by mistake run a whole optimizer step under no_sync. On a
// device the host cannot look at the parameters without waiting: begin_backward() counts the synchronised backwards.
void Reducer::count_step() {
  if (!counts_steps_ || on_device()) return;
  std::uint64_t sample = 0;
  for (const auto& [name, tensor] : parameters()) sample = mix(sample, sample_of(tensor));
  if (last_sample_ != sample) {
    const bool own = last_sample_ && !sync_ && host_communicator_.rank() == 0;
    if (own && std::any_of(used_.begin(), used_.end(), [](std::uint8_t used) { return used != 0; }))
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
    device_factor_.begin(parameters().front().tensor.device(), step.mine.count, 1 / average_.loss_factor());
}

// Of this step, or on a device of the step before.
void Reducer::receive_messages() {
  while (message_.pending() > (receives_later() ? 1 : 0)) {
    StepSummary summary = message_.receive();
    observer_.received(std::move(summary.durations));
    average_.adopt(summary.average);
  }
}

void Reducer::on_gradient(std::size_t index) {
  if (torch::GradMode::is_enabled()) {
    fail_usage(
        "backward was called with create_graph, which would replace the gradients in the buckets; compute gradients of gradients with torch::autograd::grad");
  }
  if (state_ != State::running) begin_plain_backward(parameters()[index].name);
  used_[index] = 1;
  if (backward_) backward_->gradient_arrived(index);
  host_communicator_.progress();
}

CommFuture Reducer::reduce(Bucket& bucket) {
  if (comm_hook_) return comm_hook_->start(*bucket.view, device_communicator_);
  const FlatBucket& flat = *bucket.flat;
  const auto factor = average_.factor();
  comm::ReduceOptions options{.keep = flat.memory()};
  if (!on_device()) {
    options.scale = factor.get();
    // If backward throws, this object may be destroyed before the operation, which waits for other ranks, ends.
    options.keep = std::make_shared<std::pair<std::shared_ptr<const double>, std::shared_ptr<void>>>(
        factor, flat.memory());
  } else if (device_factor_.known()) {
    device_factor_.multiply_before_reduction(flat.tensor());
  } else if (*factor != 1) {
    flat.tensor().mul_(*factor);
  }
  return {{device_communicator_.all_reduce(flat.buffer(), flat.label(), std::move(options))}, {}};
}

// A hook may send anything, but one that moves parameters is a sharded optimizer's.
std::optional<record::Collective> Reducer::collective() const {
  if (!comm_hook_) return record::Collective::all_reduce;
  if (comm_hook_->moves_parameters()) return record::Collective::reduce_scatter;
  return std::nullopt;
}

void Reducer::finish() {
  if (backward_) end_synchronised(false);
  state_ = State::idle;
}

void Reducer::skip() {
  begin(Averaging::undecided, 0);
  if (backward_) end_synchronised(true);
  state_ = State::idle;
}

void Reducer::contribute_zeros() {
  for (const auto& [name, tensor] : parameters()) tensor.mutable_grad() = torch::Tensor();
  skip();
}

void Reducer::discard() {
  reset_after_throw();
  average_.discard();
  forget_accumulated();
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters()) {
    torch::Tensor& gradient = tensor.mutable_grad();
    if (gradient.defined()) gradient.zero_();
  }
}

void Reducer::forget_accumulated() {
  used_.assign(parameters().size(), 0);
  reached_.clear();
  unseen_forwards_.clear();
}

void Reducer::end_synchronised(bool skipping) {
  const torch::NoGradGuard no_grad;
  observer_.backward_ended();
  if (!skipping) backward_->learn();
  if (!ordered_) lay_out();
  backward_->complete(skipping || options_.find_unused_parameters || options_.static_graph);
  if (!average_.agreed()) receive_messages();
  backward_->launch();
  const auto scope = timer_.phase(profile::Phase::comm_exposed);
  const auto usage = exchange_usage();
  receive_messages();
  backward_->wait();
  if (comm_hook_) scale_means();
  if (usage) usage->wait();
  buckets_->give_back_gradients(*used_anywhere_);
  // Inside join, ranks that have ended keep their old parameters.
  if (counts_steps_) replica_check_.compare(parameters(), step_);
  forget_accumulated();
  outdated_hooks_.clear();
  observer_.finish(collective());
  note_averaged_gradients();
  timer_.note_synchronised(this);
  backward_.reset();
}

// All ranks take over the order of rank 0's gradients. If rank 0 skips this step, a later one decides.
void Reducer::lay_out() {
  constexpr auto kUnknown = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> order = backward_->order();
  order.resize(parameters().size(), kUnknown);
  host_communicator_
      .broadcast({order.data(), order.size(), comm::DataType::i64}, 0, "the order of gradients")
      ->wait();
  ordered_ = order.front() != kUnknown;
  if (ordered_) buckets_->assign(order);
  if (buckets_->allocated()) return;
  buckets_->allocate();
  if (comm_hook_) comm_hook_->buckets_changed();
}

// Null if used_anywhere_ stays as it is.
comm::WorkHandle Reducer::exchange_usage() {
  const bool settled = options_.static_graph ? used_anywhere_->back() == 0 : !options_.find_unused_parameters;
  if (settled) return nullptr;
  used_anywhere_ = std::make_shared<std::vector<std::uint8_t>>(used_);
  auto& flags = *used_anywhere_;
  for (std::size_t i = 0; options_.static_graph && i < expected_.size(); ++i) {
    if (expected_[i] > 0) flags[i] = 1;
  }
  flags.push_back(expected_.empty() ? 1 : 0);
  return host_communicator_.all_reduce({flags.data(), flags.size(), comm::DataType::u8}, "used parameters",
                                       {.op = comm::ReduceOp::max, .keep = used_anywhere_});
}

void Reducer::note_averaged_gradients() {
  // A step without counts leaves zeros. A device's count is not known yet.
  if (average_.mode() != Averaging::by_count || (!on_device() && average_.count_of_last_step() == 0)) return;
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    const torch::Tensor& gradient = parameters()[i].tensor.grad();
    if (gradient.defined()) averaged_.push_back({i, gradient.data_ptr(), gradient._version()});
  }
}

// Hooks give the mean over ranks.
void Reducer::scale_means() {
  const int ranks = host_communicator_.size();
  for (auto& bucket : buckets_->list()) {
    if (device_factor_.known()) {
      device_factor_.multiply_after_hook(bucket.view->buffer(), ranks);
    } else if (const double scale = *average_.factor() * ranks; scale != 1) {
      bucket.view->buffer().mul_(scale);
    }
  }
}

}  // namespace lockstep::ddp
