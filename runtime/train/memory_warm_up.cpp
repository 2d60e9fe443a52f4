#include <c10/util/Exception.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/job_limits.h"
#include "common/units.h"
#include "runtime/comm/communicator.h"
#include "runtime/ddp/collectives.h"
#include "runtime/profile/operators.h"
#include "runtime/train/debug.h"
#include "runtime/train/rehearsal.h"

namespace lockstep {
namespace {

// The CPU's allocator throws a plain c10::Error, which only its message identifies.
bool is_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::string_view(error.what_without_backtrace()).find("DefaultCPUAllocator") !=
             std::string_view::npos;
}

// Runs forward and backward. Returns why memory did not suffice, and "" if it did.
std::string run_micro_batch(const torch::nn::Module& module, const std::function<torch::Tensor()>& loss) {
  const train::Rehearsal rehearsal(module);
  const torch::AutoGradMode with_grad(true);
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : module.parameters()) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  const auto first_line = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  try {
    const torch::Tensor value = loss();
    if (!value.defined() || !value.requires_grad())
      fail_usage(
          "memory warm-up: the loss does not depend on any trained parameter; return the loss of a batch");
    // Not backward(): it would add to .grad, and the hooks of DistributedDataParallel would run.
    torch::autograd::grad({value}, parameters, /*grad_outputs=*/{}, /*retain_graph=*/false,
                          /*create_graph=*/false,
                          /*allow_unused=*/true);
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) throw;
    return first_line(error.what_without_backtrace());
  } catch (const std::bad_alloc& error) {
    return first_line(error.what());
  }
  return "";
}

constexpr double kCloseEnough = 1.05;  // of one cap to the next
constexpr std::uint64_t kFirstPart = 8;

// "VmRSS" or "VmHWM", its peak.
std::uint64_t resident_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1)) << 10U;
  }
  return 0;
}

// Gives freed memory back, which World lets the heap keep, and counts the peak from now on. Where the kernel refuses that, it counts from the start, and the search is too careful.
void reset_peak() {
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;
}

// What the rank may use beyond what it uses at the beginning.
class Budget {
 public:
  Budget(const World& world, torch::Device device, const CapSearch& search) : device_(device) {
    reset();
    std::uint64_t left = 0;
    if (device_.is_cpu()) {
      before_ = resident_bytes("VmRSS");
      left = available_memory().available / static_cast<std::uint64_t>(world.local_size());
    } else if (const auto memory = profile::device_memory(device_.index())) {
      before_ = memory->used;
      left = memory->left;
    } else {
      return;
    }
    const auto all = static_cast<double>(search.limit_bytes != 0 ? search.limit_bytes : left);
    bytes_ = std::max(1.0, all * (1 - search.reserve));
  }

  void reset() const {
    if (device_.is_cpu()) {
      reset_peak();
    } else {
      profile::reset_device_peak(device_.index());
    }
  }

  /// The maximum since reset(), ÷ the budget; 0: not known.
  double share_used() const {
    std::uint64_t peak = 0;
    if (device_.is_cpu()) {
      peak = resident_bytes("VmHWM");
    } else if (const auto memory = profile::device_memory(device_.index())) {
      peak = memory->peak;
    }
    return bytes_ == 0 ? 0 : static_cast<double>(std::max(peak, before_) - before_) / bytes_;
  }

  std::string text() const {
    return bytes_ == 0 ? "" : fmt::format(" ({})", format_bytes(static_cast<std::uint64_t>(bytes_)));
  }

 private:
  torch::Device device_;
  std::uint64_t before_ = 0;
  double bytes_ = 0;  // 0: not known
};

// Throws on all ranks if `work` throws on one. `what`: "try a micro-batch".
void on_all_ranks(World& world, const std::string& what, const std::function<void()>& work) {
  const auto failure = comm::run_on_all_ranks(world.communicator(), what, work);
  if (!failure) return;
  if (failure->own) std::rethrow_exception(failure->own);
  fail("rank {} could not {}: {}", failure->rank, what, failure->reason);
}

// The share of its budget that the rank which needs most needs for one micro-batch; above 1: it does not fit. The same on
// all ranks: if each decided alone, the operations of a model that communicates would differ.
double share_on_all_ranks(World& world, const torch::nn::Module& module, const Budget& budget,
                          std::uint64_t cap, const std::function<torch::Tensor(std::uint64_t cap)>& loss) {
  double share = 0;
  const auto run = [&] {
    budget.reset();
    const bool fits = run_micro_batch(module, [&] { return loss(cap); }).empty();
    share = fits ? budget.share_used() : 2;
  };
  on_all_ranks(world, fmt::format("try a micro-batch of {} tokens", cap), run);
  const auto largest = torch::tensor({share}, torch::kDouble);
  all_reduce(world, largest, ReduceOp::max, "the memory of a micro-batch");
  return largest.item<double>();
}

}  // namespace

std::uint64_t find_largest_cap(World& world, const torch::nn::Module& module,
                               const std::function<torch::Tensor(std::uint64_t cap)>& loss,
                               const CapSearch& search) {
  const auto parameters = module.parameters();
  std::optional<Budget> own;
  on_all_ranks(world, "measure the memory that is left", [&] {
    own.emplace(world, parameters.empty() ? torch::Device(torch::kCPU) : parameters.front().device(), search);
  });
  const Budget& budget = *own;
  std::uint64_t fits = 0;
  std::uint64_t fails = 0;  // 0: none yet
  double used = 0;          // share of the budget, with the cap that fits
  // Nothing is known of the model's memory yet: `begin` itself might be too large by far.
  for (std::uint64_t cap = std::max<std::uint64_t>(1, search.begin / kFirstPart);;) {
    const double share = share_on_all_ranks(world, module, budget, cap, loss);
    if (share <= 1) {
      fits = cap;
      used = share;
    } else {
      fails = cap;
    }
    const auto refuse = [&] {
      fail(
          "a micro-batch of {} tokens does not fit into memory{}: use activation checkpointing or a smaller model",
          search.begin, budget.text());
    };
    if (fits == 0 || (fails != 0 && fails <= search.begin)) refuse();
    // Memory grows at most with the square of the cap.
    const double growth = used > 0.25 ? std::sqrt(1 / used) : 2;
    cap = std::min(static_cast<std::uint64_t>(static_cast<double>(fits) * growth), search.end);
    if (fails != 0) cap = std::min(cap, (fits + fails) / 2);
    if (static_cast<double>(cap) >= static_cast<double>(fits) * kCloseEnough) continue;
    if (fits < std::min(search.begin, search.end)) refuse();
    return fits;
  }
}

void memory_warm_up(const torch::nn::Module& module, const std::function<torch::Tensor()>& loss) {
  const std::string why = run_micro_batch(module, loss);
  if (why.empty()) return;
  fail(
      "memory warm-up: the largest micro-batch does not fit into memory: lower the plan's cap, or use activation checkpointing ({})",
      why);
}

}  // namespace lockstep
