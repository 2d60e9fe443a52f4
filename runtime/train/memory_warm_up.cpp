#include <c10/util/Exception.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/job_limits.h"
#include "common/units.h"
#include "runtime/ddp/collectives.h"
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

[[noreturn]] void fail_for_memory(const std::string& why) {
  fail(
      "memory warm-up: the largest micro-batch does not fit into memory: lower the plan's cap, or use activation checkpointing ({})",
      why.substr(0, why.find('\n')));
}

constexpr double kCloseEnough = 1.05;  // of one cap to the next

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

struct MemoryOfHost {
  std::uint64_t before = 0;
  std::uint64_t limit = 0;

  double share_used() const {
    const std::uint64_t peak = resident_bytes("VmHWM");
    return static_cast<double>(std::max(peak, before) - before) / static_cast<double>(limit);
  }
};

}  // namespace

std::uint64_t find_largest_cap(World& world, const torch::nn::Module& module,
                               const std::function<torch::Tensor(std::uint64_t cap)>& loss,
                               const CapSearch& search) {
  const auto parameters = module.parameters();
  std::optional<MemoryOfHost> host;
  if (parameters.empty() || parameters.front().is_cpu()) {
    const std::uint64_t all = search.limit_bytes != 0 ? search.limit_bytes
                                                      : available_memory().available /
                                                            static_cast<std::uint64_t>(world.local_size());
    reset_peak();
    host = {.before = resident_bytes("VmRSS"),
            .limit = static_cast<std::uint64_t>(static_cast<double>(all) * (1 - search.reserve))};
  }
  std::uint64_t fits = 0;
  std::uint64_t fails = 0;  // 0: none yet
  double used = 0;          // share of the limit, with the cap that fits
  for (std::uint64_t cap = search.begin;;) {
    if (host) reset_peak();
    bool enough = true;
    try {
      memory_warm_up(module, [&] { return loss(cap); });
    } catch (const UsageError&) {
      throw;
    } catch (const Error&) {
      enough = false;
    }
    const double share = host ? host->share_used() : 0;
    if (enough && share <= 1) {
      fits = cap;
      used = share;
    } else {
      fails = cap;
    }
    if (fits == 0)
      fail(
          "a micro-batch of {} tokens does not fit into memory{}: use activation checkpointing or a smaller model",
          cap, host ? fmt::format(" ({})", format_bytes(host->limit)) : "");
    // Memory grows at most with the square of the cap.
    const double growth = used > 0.25 ? std::sqrt(1 / used) : 2;
    cap = std::min(static_cast<std::uint64_t>(static_cast<double>(fits) * growth), search.end);
    if (fails != 0) cap = std::min(cap, (fits + fails) / 2);
    if (static_cast<double>(cap) < static_cast<double>(fits) * kCloseEnough) break;
  }
  const auto lowest = torch::tensor({static_cast<std::int64_t>(fits)});
  all_reduce(world, lowest, ReduceOp::min, "the largest cap");
  return static_cast<std::uint64_t>(lowest.item<std::int64_t>());
}

void memory_warm_up(const torch::nn::Module& module, const std::function<torch::Tensor()>& loss) {
  const train::Rehearsal rehearsal(module);
  const torch::AutoGradMode with_grad(true);
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : module.parameters()) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
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
    fail_for_memory(error.what_without_backtrace());
  } catch (const std::bad_alloc& error) {
    fail_for_memory(error.what());
  }
}

}  // namespace lockstep
