#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/units.h"
#include "runtime/ddp/operation_observer.h"
#include "runtime/profile/module_owners.h"
#include "runtime/train/debug.h"
#include "runtime/train/rehearsal.h"

namespace lockstep {
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

}  // namespace lockstep
