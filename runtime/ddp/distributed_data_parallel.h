// Data-parallel training of any torch::nn::Module: each rank computes the gradients of its part of the batch,
// and they are summed over the ranks while backward still runs. It is what PyTorch calls
// DistributedDataParallel.
//
//   lockstep::World world(argc, argv);
//   lockstep::DistributedDataParallel ddp(model, world);
//   for (const auto& batch : loader) {
//     auto hold = ddp.no_sync_unless(batch.last_of_step);   // covers forward and backward
//     ddp.backward(loss_sum(ddp(batch.inputs), batch.targets), batch.loss_tokens);
//     if (batch.last_of_step) { optimizer.step(); optimizer.zero_grad(); }
//   }
//
// The loss is the SUM over the tokens that count, and `loss_tokens` says how many those are. After the
// synchronised backward every rank's .grad is the gradient of the mean over all tokens of the optimizer step,
// whatever each rank and micro-batch contributed: the same as one process gets for the whole batch. The
// factor is known only then; until it is, gradients are kept in the right order of magnitude by a power of
// two, which costs no precision.
//
// Rules: exactly one synchronised backward (or skip) per optimizer step, and every rank does the same steps;
// how many micro-batches under no_sync come before it may differ between ranks; gradients are zeroed or set
// to none between optimizer steps; parameters are not frozen after construction; .grad is a view of memory
// owned here, unless gradient_as_bucket_view is off. The module itself is not wrapped: save, load and print
// it as before, its names do not change.
//
// The model may be changed between steps, on all ranks alike: loaded, converted to another element type,
// given other parameters or submodules, unfrozen. The next forward that records gradients (or skip) sees it:
// all ranks make that call, their models are compared as at construction, everyone gets rank 0's values, and
// the next synchronised backward is learned from like the first.
//
// Threads: the training thread only.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/ddp/comm_hook.h"
#include "runtime/ddp/join.h"
#include "runtime/ddp/options.h"
#include "runtime/ddp/outputs.h"

namespace lockstep {

namespace ddp {
class KnownParameters;
class Reducer;
struct NamedTensor;
}  // namespace ddp

/// The part that does not depend on the module's type; made through DistributedDataParallel.
class DistributedDataParallelBase {
 public:
  DistributedDataParallelBase(const DistributedDataParallelBase&) = delete;
  DistributedDataParallelBase& operator=(const DistributedDataParallelBase&) = delete;

  /// Restores what was before when it goes out of scope. Guards end in reverse order, and before the
  /// DistributedDataParallel that made them.
  class [[nodiscard]] SyncGuard {
   public:
    ~SyncGuard() { *sync_ = before_; }
    SyncGuard(const SyncGuard&) = delete;
    SyncGuard& operator=(const SyncGuard&) = delete;

   private:
    friend class DistributedDataParallelBase;
    SyncGuard(bool* sync, bool now) : sync_(sync), before_(std::exchange(*sync, now && *sync)) {}
    bool* sync_;
    bool before_;
  };

  /// While it lives, gradients are only accumulated on this rank.
  SyncGuard no_sync() { return {&sync_, false}; }

  /// no_sync() unless `last`: for loops over micro-batches.
  SyncGuard no_sync_unless(bool last) { return {&sync_, last}; }

  /// Backward of a loss that is a sum over `loss_tokens` tokens (0 or more). When it returns under
  /// synchronisation, gradients are final on all ranks. Throws Error naming the parameter that got no
  /// gradient, UsageError for a loss that is no scalar or depends on no parameter.
  void backward(const torch::Tensor& loss_sum, std::int64_t loss_tokens);

  /// Backward of a loss that is a mean over this rank's batch, for Average::ranks. loss.backward() works
  /// there as well.
  void backward(const torch::Tensor& loss);

  /// A micro-batch without data on this rank: takes part in whatever the others do in their forward and
  /// backward.
  void skip();

  /// Drops what was accumulated since the last synchronised backward, instead of finishing the step: its
  /// tokens are forgotten, and gradients become zero (those that are none stay none). All ranks call it at
  /// the same point of their loops; it sends nothing. Throws Error after a synchronised backward that threw,
  /// which cannot be taken back.
  void discard();

  /// Gives everyone rank 0's buffers (running statistics), before an evaluation on all ranks for example. All
  /// ranks call it at the same point. Throws UsageError inside join().
  void broadcast_buffers();

  /// How the ranks' gradients are summed from now on: fp16_compress_hook(), bf16_compress_hook(),
  /// power_sgd_hook() (runtime/ddp/hooks/), or your own. Once, before the first backward, on all ranks alike.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  /// Runs a training loop whose number of steps differs between ranks (Average::ranks). A rank whose loop has
  /// ended takes part in what the others do, with zeros, until theirs have ended too; then all get the model
  /// of the rank that ended last. Each forward in the loop must be followed by its backward; nothing else in
  /// it may be done by all ranks together. On a rank that has ended .grad goes on to hold what the others
  /// compute. Throws what `loop` throws.
  void join(const std::function<void()>& loop, const JoinOptions& options = {});

  /// Tokens of all ranks in the last optimizer step (Average::tokens).
  std::int64_t tokens_of_last_step() const;

  /// As given, with the sizes of buckets as they are now (autotune_buckets changes them once).
  const DistributedDataParallelOptions& options() const;

  World& world() const { return world_; }

  /// The machinery, for tools that look at buckets and launches.
  const ddp::Reducer& reducer() const { return *reducer_; }

 protected:
  DistributedDataParallelBase(torch::nn::Module& module, World& world,
                              const DistributedDataParallelOptions& options);
  ~DistributedDataParallelBase();

  /// What comes before the module's own forward. Throws UsageError naming the parameter that was changed in a
  /// way that cannot be followed, or differs between ranks.
  void before_forward();

  /// What comes after it; `known`: whether `outputs` are all that it returned. Throws UsageError naming a
  /// parameter that forward itself has changed.
  void after_forward(const std::vector<torch::Tensor>& outputs, bool known);

  World& world_;

 private:
  void run_backward(const torch::Tensor& loss, std::int64_t tokens);
  bool broadcasts_buffers() const;
  void broadcast_buffers_of(int root);
  std::vector<ddp::NamedTensor> make_alike(std::string_view why);
  void adopt_changes();

  torch::nn::Module& module_;
  comm::Communicator* of_tensors_ = nullptr;  // for the memory of the module's device
  std::unique_ptr<ddp::Reducer> reducer_;
  std::unique_ptr<ddp::KnownParameters> known_;  // as reducer_ has them
  std::unique_ptr<ddp::Join> join_;              // inside join()
  bool sync_ = true;
  bool broadcast_due_ = true;  // the forward before this one was synchronised, or there was none
};

template <typename Module>
class DistributedDataParallel : public DistributedDataParallelBase {
 public:
  /// All ranks call it. Checks that their models are alike (Error naming the first option, parameter or
  /// buffer that differs) and gives everyone rank 0's parameters and buffers.
  DistributedDataParallel(std::shared_ptr<Module> module, World& world,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelBase(*module, world, options), module_(std::move(module)) {}

  /// The same for what TORCH_MODULE makes.
  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& holder, World& world,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(holder.ptr(), world, options) {}

  /// The module's forward, with whatever it takes and returns.
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    before_forward();
    const auto scope = world_.timer().phase(profile::Phase::forward);
    auto output = module_->forward(std::forward<Inputs>(inputs)...);
    using Tensors = OutputTensors<std::decay_t<decltype(output)>>;
    std::vector<torch::Tensor> tensors;
    Tensors::collect(output, tensors);
    after_forward(tensors, Tensors::known);
    return output;
  }

  Module& module() { return *module_; }
  Module* operator->() { return module_.get(); }

 private:
  std::shared_ptr<Module> module_;
};

}  // namespace lockstep
