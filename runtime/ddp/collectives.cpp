#include "runtime/ddp/collectives.h"

#include <fmt/ranges.h>

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
namespace {

// The operations on one tensor.
class TensorWork final : public comm::Work {
 public:
  std::vector<comm::WorkHandle> works;
  torch::Tensor buffer;   // the operations work on this
  torch::Tensor written;  // autograd must notice that its memory changed; undefined if nothing else sees it
  torch::Tensor copy_to;  // defined if wait() must copy `buffer` there
  double divisor = 1;

  bool done() const override {
    return std::all_of(works.begin(), works.end(), [](const auto& work) { return work->done(); });
  }

  void wait() override {
    for (const auto& work : works) work->wait();
    if (stored_) return;
    const torch::NoGradGuard no_grad;
    const double divide_by = std::exchange(divisor, 1);
    if (divide_by != 1) buffer.div_(divide_by);
    if (copy_to.defined()) {
      copy_to.detach().copy_(buffer);
    } else if (written.defined() && !written.is_inference()) {
      written.unsafeGetTensorImpl()->bump_version();
    }
    stored_ = true;  // only now, so that wait() can be repeated after an exception above
  }

  comm::WorkTimes times() const override { return works.back()->times(); }

 private:
  bool stored_ = false;
};

// Keeps the tensors of a handle that was destroyed before its operation had ended: an operation cannot be
// cancelled.
void keep_until_done(std::shared_ptr<TensorWork> work) {
  static auto& mutex = *new std::mutex;
  static auto& kept = *new std::vector<std::shared_ptr<TensorWork>>;
  const std::scoped_lock lock(mutex);
  std::erase_if(kept, [](const auto& one) { return one->done(); });
  if (!work->done()) kept.push_back(std::move(work));
}

std::shared_ptr<TensorWork> make_work() {
  return {new TensorWork, [](TensorWork* dropped) {
            std::shared_ptr<TensorWork> owned(dropped);
            if (!owned->done()) keep_until_done(std::move(owned));
          }};
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
  ddp::check_supported(tensor.device(), fmt::format("{} of {}: the tensor", call, describe(label, tensor)));
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

comm::DataType reducible(const torch::Tensor& tensor, ReduceOp op, std::string_view label) {
  if (op == ReduceOp::bit_or || op == ReduceOp::sum_or_max)
    fail_usage("all_reduce of {}: {} is not for tensors; use sum, average, max or min",
               describe(label, tensor), name_of(op));
  const auto refuse = [&](const char* remedy) {
    fail_usage("all_reduce of {}: {} does not support this element type; {}", describe(label, tensor),
               name_of(op), remedy);
  };
  const torch::ScalarType scalar = tensor.scalar_type();
  if (c10::isComplexType(scalar)) refuse("reduce torch::view_as_real() of it");
  const auto type = ddp::exchanged_as(scalar);
  const bool picks = op == ReduceOp::max || op == ReduceOp::min;
  if (!type || (scalar == torch::kByte && !picks)) refuse("call to(torch::kLong) on it first");
  if (op == ReduceOp::average && !c10::isFloatingType(scalar)) refuse("call to(torch::kDouble) on it first");
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
                   std::string_view detail, std::string_view label, TensorWork& work) {
  if (communicator.device() < 0) return;
  work.works.push_back(world.communicator().barrier(fmt::format("{} of {}{}", call, label, detail)));
}

std::shared_ptr<TensorWork> in_place(const torch::Tensor& tensor) {
  auto work = make_work();
  work->written = tensor;
  work->buffer = contiguous_of(tensor);
  if (tensor.numel() > 0 && work->buffer.data_ptr() != tensor.data_ptr()) work->copy_to = tensor;
  return work;
}

}  // namespace

WorkHandle all_reduce_async(World& world, const torch::Tensor& tensor, ReduceOp op, std::string_view label) {
  check_writable(tensor, "all_reduce", label);
  const comm::DataType type = reducible(tensor, op, label);
  auto& communicator = ddp::communicator_for(world, tensor.device());
  auto work = in_place(tensor);
  const std::string what = describe(label, tensor);
  compare_calls(world, communicator, "all_reduce", fmt::format(", {}", name_of(op)), what, *work);
  comm::ReduceOptions options;
  options.op = op;
  // NCCL would round 1 / size to a half and multiply halves by it before the sum.
  if (op == ReduceOp::average && communicator.device() >= 0) {
    options.op = ReduceOp::sum;
    work->divisor = world.size();
  }
  work->works.push_back(communicator.all_reduce(memory_of(work->buffer, type), what, std::move(options)));
  return work;
}

WorkHandle broadcast_async(World& world, const torch::Tensor& tensor, int root, std::string_view label) {
  check_writable(tensor, "broadcast", label);
  auto& communicator = ddp::communicator_for(world, tensor.device());
  auto work = in_place(tensor);
  const std::string what = describe(label, tensor);
  compare_calls(world, communicator, "broadcast", fmt::format(", from rank {}", root), what, *work);
  work->works.push_back(communicator.broadcast(memory_of(work->buffer), root, what));
  return work;
}

WorkHandle all_gather_async(World& world, const torch::Tensor& tensor, torch::Tensor& all,
                            std::string_view label) {
  check(tensor, "all_gather", label);
  auto& communicator = ddp::communicator_for(world, tensor.device());
  auto work = make_work();
  work->buffer = contiguous_of(tensor);
  auto sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), world.size());
  work->written = torch::empty(sizes, work->buffer.options());
  const std::string what = describe(label, tensor);
  compare_calls(world, communicator, "all_gather", "", what, *work);
  work->works.push_back(communicator.all_gather(memory_of(work->buffer), work->written.data_ptr(), what));
  all = work->written;
  return work;
}

WorkHandle barrier_async(World& world, std::string_view label) {
  return world.communicator().barrier(label);
}

void all_reduce(World& world, const torch::Tensor& tensor, ReduceOp op, std::string_view label) {
  all_reduce_async(world, tensor, op, label)->wait();
}

void broadcast(World& world, const torch::Tensor& tensor, int root, std::string_view label) {
  broadcast_async(world, tensor, root, label)->wait();
}

torch::Tensor all_gather(World& world, const torch::Tensor& tensor, std::string_view label) {
  torch::Tensor all;
  all_gather_async(world, tensor, all, label)->wait();
  return all;
}

void barrier(World& world, std::string_view label) {
  barrier_async(world, label)->wait();
}

}  // namespace lockstep
