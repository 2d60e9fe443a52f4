#include "runtime/train/debug.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/job_limits.h"
#include "common/process.h"
#include "common/units.h"
#include "runtime/comm/communicator.h"
#include "runtime/ddp/collectives.h"
#include "runtime/ddp/model_faults.h"
#include "runtime/ddp/operation_observer.h"
#include "runtime/profile/module_owners.h"
#include "runtime/profile/operators.h"
#include "runtime/train/random_state.h"

namespace lockstep {

ModelFindings check_model(const torch::nn::Module& module, const std::function<torch::Tensor()>& forward,
                          const DistributedDataParallelOptions& options) {
  const train::Rehearsal rehearsal(module);
  const torch::AutoGradMode with_grad(true);
  ddp::FirstForward observed(module);
  const torch::Tensor loss = forward();
  if (!loss.defined() || !loss.requires_grad())
    fail_usage("check_model: the loss does not depend on any trained parameter; return the loss of a batch");
  return observed.findings({loss}, options);
}

void check_loss(const World& world, double loss, std::int64_t step) {
  if (std::isfinite(loss)) return;
  fail("the loss is {} in step {} on {}: lower the learning rate or clip gradients", loss, step,
       rank_name(world.rank(), world.node_name()));
}

namespace {

using profile::storage_of;
using Storage = c10::StorageImpl;

// Measures a forward: the time of each module, and the results that live on because backward needs them.
class Measurement {
 public:
  explicit Measurement(const torch::nn::Module& module) {
    owners_.add(module);
    for (const std::string& name : owners_.names()) modules_.push_back({.candidate = {.module = name}});
  }

  void see(const ddp::Operation& operation) {
    const int owner = owners_.owner_of_any(operation.inputs);
    if (owner >= 0) now_ = owner;
    if (operation.called_by_program) {
      const std::uint64_t ns = monotonic_ns();
      if (now_ >= 0) at(now_).candidate.recompute_ms += static_cast<double>(ns - last_ns_) * 1e-6;
      last_ns_ = ns;
    }
    for (const auto& result : operation.results) {
      const Storage* storage = storage_of(result);
      const bool view = std::any_of(operation.inputs.begin(), operation.inputs.end(),
                                    [&](const auto& input) { return storage_of(input) == storage; });
      if (storage == nullptr || view || owners_.owner_of(profile::address_of(result)) >= 0) continue;
      const auto known = seen_.find(storage);
      if (known != seen_.end() && !results_[known->second].storage.expired()) continue;
      seen_[storage] = results_.size();
      results_.push_back({result.toTensor().storage().getWeakStorageImpl(), storage->nbytes(), now_});
    }
  }

  // While the graph lives. Also returns the bytes of all results that live on.
  std::pair<std::vector<CheckpointCandidate>, std::uint64_t> candidates() {
    std::uint64_t kept = 0;
    for (const Result& result : results_) {
      if (result.storage.expired()) continue;
      kept += result.bytes;
      if (result.module < 0) continue;
      at(result.module).candidate.saved_bytes += result.bytes;
      at(result.module).output_bytes = result.bytes;  // the last one: the next module keeps it anyway
    }
    std::vector<CheckpointCandidate> all;
    for (Module& module : modules_) {
      module.candidate.saved_bytes -= module.output_bytes;
      if (module.candidate.saved_bytes > 0) all.push_back(std::move(module.candidate));
    }
    return {std::move(all), kept};
  }

 private:
  struct Module {
    CheckpointCandidate candidate;
    std::uint64_t output_bytes = 0;
  };
  struct Result {
    c10::weak_intrusive_ptr<Storage> storage;
    std::uint64_t bytes = 0;
    int module = -1;
  };

  Module& at(int module) { return modules_[static_cast<std::size_t>(module)]; }

  std::vector<Module> modules_;
  profile::ModuleOwners owners_;
  std::vector<Result> results_;
  std::unordered_map<const Storage*, std::size_t> seen_;
  int now_ = -1;
  std::uint64_t last_ns_ = monotonic_ns();
};

}  // namespace

std::vector<CheckpointCandidate> suggest_checkpoints(const torch::nn::Module& module,
                                                     const std::function<torch::Tensor()>& forward,
                                                     std::uint64_t budget_bytes) {
  const train::Rehearsal rehearsal(module);
  const torch::AutoGradMode with_grad(true);
  forward();  // the first call is slower
  Measurement measurement(module);
  torch::Tensor loss;
  {
    const ddp::OperationObserver observer(
        [&](const ddp::Operation& operation) { measurement.see(operation); });
    loss = forward();
  }
  if (!loss.defined() || !loss.requires_grad())
    fail_usage(
        "suggest_checkpoints: the loss does not depend on any trained parameter; return the loss of a batch");
  auto [all, kept] = measurement.candidates();
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return static_cast<double>(a.saved_bytes) * b.recompute_ms >
           static_cast<double>(b.saved_bytes) * a.recompute_ms;
  });
  for (auto& candidate : all) {
    if (kept <= budget_bytes) break;
    candidate.suggested = true;
    kept -= candidate.saved_bytes;
  }
  // A large one that was needed may have made smaller ones needless.
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.recompute_ms > b.recompute_ms; });
  for (auto& candidate : all) {
    if (!candidate.suggested || kept + candidate.saved_bytes > budget_bytes) continue;
    candidate.suggested = false;
    kept += candidate.saved_bytes;
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.saved_bytes > b.saved_bytes; });
  return all;
}

std::string to_text(const std::vector<CheckpointCandidate>& candidates) {
  std::size_t width = 0;
  for (const auto& one : candidates) width = std::max(width, one.module.size());
  std::string text;
  for (const auto& one : candidates) {
    text += fmt::format("{} {:<{}} {:>10} {:>8.2f} ms\n", one.suggested ? '*' : ' ', one.module, width,
                        format_bytes(one.saved_bytes), one.recompute_ms);
  }
  return text;
}

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
