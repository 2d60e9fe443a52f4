#include "runtime/ddp/collectives.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "runtime/ddp/device.h"
#include "runtime/ddp/flat_bucket.h"

namespace lockstep {

struct TensorWork::State {
  std::vector<comm::WorkHandle> works;
  torch::Tensor buffer;   // the operations work on this
  torch::Tensor copy_to;  // defined if wait() must copy `buffer` there
  torch::Tensor result;   // wait() returns this
  double divisor = 1;

  bool done() const {
    return std::all_of(works.begin(), works.end(), [](const auto& work) { return work->done(); });
  }
};

namespace {

using State = TensorWork::State;

// Keeps the state of a handle that was destroyed before its operation had ended: an operation cannot be
// cancelled.
void keep_until_done(std::shared_ptr<State> state) {
  static auto& mutex = *new std::mutex;
  static auto& kept = *new std::vector<std::shared_ptr<State>>;
  const std::scoped_lock lock(mutex);
  std::erase_if(kept, [](const auto& one) { return one->done(); });
  if (!state->done()) kept.push_back(std::move(state));
}

TensorWork handle_of(State state) {
  return TensorWork(std::shared_ptr<State>(new State(std::move(state)), [](State* dropped) {
    std::shared_ptr<State> owned(dropped);
    if (!owned->done()) keep_until_done(std::move(owned));
  }));
}

// "accuracy (Double [3])". Ranks compare it, so they notice shapes that differ but have as many elements.
std::string describe(std::string_view label, const torch::Tensor& tensor) {
  return fmt::format("{} ({} [{}])", label, c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes().vec(), ", "));
}

void check(const torch::Tensor& tensor, const char* call, std::string_view label) {
  if (!tensor.defined()) fail_usage("{} of {}: the tensor is undefined; define it on all ranks", call, label);
  const auto refuse = [&](const char* why, const char* remedy) {
    fail_usage("{} of {}: the tensor is {}; {}", call, describe(label, tensor), why, remedy);
  };
  if (tensor.layout() != torch::kStrided) refuse("not dense", "call to_dense() on it first");
  if (tensor.is_quantized()) refuse("quantised", "call dequantize() on it first");
  if (!tensor.is_cpu() && !tensor.is_cuda()) {
    refuse("neither on the CPU nor on a CUDA device", "move it to one of them first");
  }
}

void check_writable(const torch::Tensor& tensor, const char* call, std::string_view label) {
  check(tensor, call, label);
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) < 2 || tensor.stride(i) != 0) continue;
    fail_usage(
        "{} of {}: the tensor was expanded, so several of its elements share memory; call clone() on it first",
        call, describe(label, tensor));
  }
}

const char* name_of(ReduceOp op) {
  static constexpr const char* kNames[] = {"sum", "mean", "max", "min"};
  return kNames[static_cast<std::size_t>(op)];
}

comm::DataType reducible(const torch::Tensor& tensor, ReduceOp op, std::string_view label) {
  const auto refuse = [&](const char* remedy) {
    fail_usage("all_reduce of {}: {} does not support this element type; {}", describe(label, tensor),
               name_of(op), remedy);
  };
  const torch::ScalarType scalar = tensor.scalar_type();
  if (c10::isComplexType(scalar)) refuse("reduce torch::view_as_real() of it");
  const auto type = ddp::exchanged_as(scalar);
  const bool picks = op == ReduceOp::max || op == ReduceOp::min;
  if (!type || (scalar == torch::kByte && !picks)) refuse("call to(torch::kLong) on it first");
  if (op == ReduceOp::mean && !c10::isFloatingType(scalar)) refuse("call to(torch::kDouble) on it first");
  return *type;
}

// The tensor itself if it is contiguous, otherwise a contiguous copy.
torch::Tensor contiguous_of(const torch::Tensor& tensor) {
  return tensor.detach().contiguous().resolve_conj().resolve_neg();
}

// The memory of a contiguous tensor, as elements of `type`, or as bytes.
comm::Buffer memory_of(const torch::Tensor& tensor, std::optional<comm::DataType> type = std::nullopt) {
  if (!type) return {tensor.data_ptr(), tensor.nbytes(), comm::DataType::u8};
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), *type};
}

// NCCL does not compare the operations that ranks ask for, so a barrier in host memory does. `detail`: the
// operation on elements, or the root.
void compare_calls(World& world, const comm::Communicator& communicator, const char* call,
                   std::string_view detail, std::string_view label, State& state) {
  if (communicator.device() < 0) return;
  state.works.push_back(world.communicator().barrier(fmt::format("{} of {}{}", call, label, detail)));
}

State in_place(const torch::Tensor& tensor) {
  State state;
  state.result = tensor;
  state.buffer = contiguous_of(tensor);
  if (tensor.numel() > 0 && state.buffer.data_ptr() != tensor.data_ptr()) state.copy_to = tensor;
  return state;
}

}  // namespace

torch::Tensor TensorWork::wait() {
  for (const auto& work : state_->works) work->wait();
  if (state_->works.empty()) return state_->result;
  const torch::NoGradGuard no_grad;
  const double divisor = std::exchange(state_->divisor, 1);
  if (divisor != 1) state_->buffer.div_(divisor);
  if (state_->copy_to.defined()) {
    state_->copy_to.detach().copy_(state_->buffer);
  } else if (state_->result.defined() && !state_->result.is_inference()) {
    // LibTorch did not see that its memory was written.
    state_->result.unsafeGetTensorImpl()->bump_version();
  }
  state_->works.clear();  // only now, so that wait() can be repeated after an exception above
  return state_->result;
}

bool TensorWork::done() const {
  return state_->done();
}

TensorWork all_reduce_async(World& world, const torch::Tensor& tensor, ReduceOp op, std::string_view label) {
  check_writable(tensor, "all_reduce", label);
  const comm::DataType type = reducible(tensor, op, label);
  auto& communicator = ddp::communicator_for(world, tensor.device());
  State state = in_place(tensor);
  const std::string what = describe(label, tensor);
  compare_calls(world, communicator, "all_reduce", fmt::format(", {}", name_of(op)), what, state);
  comm::ReduceOptions options;
  if (op == ReduceOp::max) options.op = comm::ReduceOp::max;
  if (op == ReduceOp::min) options.op = comm::ReduceOp::min;
  if (op == ReduceOp::mean && communicator.device() < 0) options.op = comm::ReduceOp::average;
  // NCCL would round 1 / size to a half and multiply halves by it before the sum.
  if (op == ReduceOp::mean && communicator.device() >= 0) state.divisor = world.size();
  state.works.push_back(communicator.all_reduce(memory_of(state.buffer, type), what, std::move(options)));
  return handle_of(std::move(state));
}

TensorWork broadcast_async(World& world, const torch::Tensor& tensor, int root, std::string_view label) {
  check_writable(tensor, "broadcast", label);
  auto& communicator = ddp::communicator_for(world, tensor.device());
  State state = in_place(tensor);
  const std::string what = describe(label, tensor);
  compare_calls(world, communicator, "broadcast", fmt::format(", from rank {}", root), what, state);
  state.works.push_back(communicator.broadcast(memory_of(state.buffer), root, what));
  return handle_of(std::move(state));
}

TensorWork all_gather_async(World& world, const torch::Tensor& tensor, std::string_view label) {
  check(tensor, "all_gather", label);
  auto& communicator = ddp::communicator_for(world, tensor.device());
  State state;
  state.buffer = contiguous_of(tensor);
  auto sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), world.size());
  state.result = torch::empty(sizes, state.buffer.options());
  const std::string what = describe(label, tensor);
  compare_calls(world, communicator, "all_gather", "", what, state);
  state.works.push_back(communicator.all_gather(memory_of(state.buffer), state.result.data_ptr(), what));
  return handle_of(std::move(state));
}

TensorWork barrier_async(World& world, std::string_view label) {
  State state;
  state.works.push_back(world.communicator().barrier(label));
  return handle_of(std::move(state));
}

void all_reduce(World& world, const torch::Tensor& tensor, ReduceOp op, std::string_view label) {
  all_reduce_async(world, tensor, op, label).wait();
}

void broadcast(World& world, const torch::Tensor& tensor, int root, std::string_view label) {
  broadcast_async(world, tensor, root, label).wait();
}

torch::Tensor all_gather(World& world, const torch::Tensor& tensor, std::string_view label) {
  return all_gather_async(world, tensor, label).wait();
}

void barrier(World& world, std::string_view label) {
  barrier_async(world, label).wait();
}

}  // namespace lockstep
