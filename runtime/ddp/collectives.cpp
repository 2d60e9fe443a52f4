#include "runtime/ddp/collectives.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "runtime/ddp/device.h"

namespace lockstep {

struct TensorWork::State {
  std::vector<comm::WorkHandle> works;
  torch::Tensor moved;   // what operations work on
  torch::Tensor into;    // where their result goes, if that is elsewhere
  torch::Tensor result;  // what wait() gives
  double divisor = 1;

  bool done() const {
    return std::all_of(works.begin(), works.end(), [](const auto& work) { return work->done(); });
  }
};

namespace {

using State = TensorWork::State;

// Handles that were dropped before their operation had ended, which nobody can take back.
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

// "accuracy (Double [3])": in what ranks compare, so that other shapes of as many elements are noticed.
std::string describe(std::string_view label, const torch::Tensor& tensor) {
  return fmt::format("{} ({} [{}])", label, c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes().vec(), ", "));
}

void check(const torch::Tensor& tensor, const char* call, std::string_view label) {
  if (!tensor.defined())
    fail_usage("{} of {}: the tensor is undefined; give it values on all ranks", call, label);
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
        "{} of {}: several elements of the tensor share memory (it was expanded); call clone() on it first",
        call, describe(label, tensor));
  }
}

const char* name_of(ReduceOp op) {
  static constexpr const char* kNames[] = {"sum", "mean", "max", "min"};
  return kNames[static_cast<std::size_t>(op)];
}

comm::DataType reducible(const torch::Tensor& tensor, ReduceOp op, std::string_view label) {
  const auto refuse = [&](const char* remedy) {
    fail_usage("all_reduce of {}: this element type has no {} over ranks; {}", describe(label, tensor),
               name_of(op), remedy);
  };
  const bool picks = op == ReduceOp::max || op == ReduceOp::min;
  switch (tensor.scalar_type()) {
    case torch::kFloat:
      return comm::DataType::f32;
    case torch::kDouble:
      return comm::DataType::f64;
    case torch::kBFloat16:
      return comm::DataType::bf16;
    case torch::kHalf:
      return comm::DataType::f16;
    case torch::kInt:
      if (op == ReduceOp::mean) refuse("call to(torch::kDouble) on it first");
      return comm::DataType::i32;
    case torch::kLong:
      if (op == ReduceOp::mean) refuse("call to(torch::kDouble) on it first");
      return comm::DataType::i64;
    case torch::kByte:
      if (!picks) refuse("call to(torch::kLong) on it first");
      return comm::DataType::u8;
    case torch::kComplexFloat:
    case torch::kComplexDouble:
      refuse("reduce torch::view_as_real() of it");
      break;
    default:
      refuse("call to(torch::kLong) on it first");
  }
  return comm::DataType::u8;
}

// The tensor itself where its elements lie one after the other as they are, or a copy in which they do.
torch::Tensor in_order(const torch::Tensor& tensor) {
  return tensor.detach().contiguous().resolve_conj().resolve_neg();
}

// The memory of a tensor that is in order, as elements of `type`, or as bytes.
comm::Buffer memory_of(const torch::Tensor& tensor, std::optional<comm::DataType> type = std::nullopt) {
  if (!type) return {tensor.data_ptr(), tensor.nbytes(), comm::DataType::u8};
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), *type};
}

// Over NCCL ranks do not compare what they ask for, so they do that in host memory. `detail`: the operation
// on elements, or the root.
void compare_first(World& world, const comm::Communicator& communicator, const char* call,
                   std::string_view detail, std::string_view label, State& state) {
  if (communicator.device() < 0) return;
  state.works.push_back(world.communicator().barrier(fmt::format("{} of {}{}", call, label, detail)));
}

State in_place(const torch::Tensor& tensor) {
  State state;
  state.result = tensor;
  state.moved = in_order(tensor);
  if (tensor.numel() > 0 && state.moved.data_ptr() != tensor.data_ptr()) state.into = tensor;
  return state;
}

}  // namespace

torch::Tensor TensorWork::wait() {
  for (const auto& work : state_->works) work->wait();
  if (state_->works.empty()) return state_->result;
  const torch::NoGradGuard no_grad;
  const double divisor = std::exchange(state_->divisor, 1);
  if (divisor != 1) state_->moved.div_(divisor);
  if (state_->into.defined()) {
    state_->into.detach().copy_(state_->moved);
  } else if (state_->result.defined() && !state_->result.is_inference()) {
    // What was written here past LibTorch counts as a change.
    state_->result.unsafeGetTensorImpl()->bump_version();
  }
  state_->works.clear();  // only now: what threw above is tried again
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
  compare_first(world, communicator, "all_reduce", fmt::format(", {}", name_of(op)), what, state);
  comm::ReduceOptions options;
  if (op == ReduceOp::max) options.op = comm::ReduceOp::max;
  if (op == ReduceOp::min) options.op = comm::ReduceOp::min;
  if (op == ReduceOp::mean && communicator.device() < 0) options.op = comm::ReduceOp::average;
  // NCCL would multiply halves by 1 / size as a half holds it, before it adds them up.
  if (op == ReduceOp::mean && communicator.device() >= 0) state.divisor = world.size();
  state.works.push_back(communicator.all_reduce(memory_of(state.moved, type), what, std::move(options)));
  return handle_of(std::move(state));
}

TensorWork broadcast_async(World& world, const torch::Tensor& tensor, int root, std::string_view label) {
  check_writable(tensor, "broadcast", label);
  auto& communicator = ddp::communicator_for(world, tensor.device());
  State state = in_place(tensor);
  const std::string what = describe(label, tensor);
  compare_first(world, communicator, "broadcast", fmt::format(", from rank {}", root), what, state);
  state.works.push_back(communicator.broadcast(memory_of(state.moved), root, what));
  return handle_of(std::move(state));
}

TensorWork all_gather_async(World& world, const torch::Tensor& tensor, std::string_view label) {
  check(tensor, "all_gather", label);
  auto& communicator = ddp::communicator_for(world, tensor.device());
  State state;
  state.moved = in_order(tensor);
  auto sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), world.size());
  state.result = torch::empty(sizes, state.moved.options());
  const std::string what = describe(label, tensor);
  compare_first(world, communicator, "all_gather", "", what, state);
  state.works.push_back(communicator.all_gather(memory_of(state.moved), state.result.data_ptr(), what));
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
