// Data-parallel training of any torch::nn::Module, as PyTorch's class of the same name. Each rank computes
// the gradients of its part of the batch. The gradients are summed over the ranks while backward still runs.
//
//   lockstep::World world(argc, argv);
//   lockstep::DistributedDataParallel ddp(model, world);
//   for (const auto& batch : loader) {
//     auto hold = ddp.no_sync_unless(batch.last_of_step);   // exchange gradients once per optimizer step
//     if (batch.empty) ddp.skip();                          // this rank has no samples in this step
//     else ddp.backward(loss_sum(ddp(batch.tokens), batch), batch.loss_tokens);
//     if (batch.last_of_step) { optimizer.step(); optimizer.zero_grad(); }
//   }
//
// How you call decides how gradients are averaged. The first backward settles it.
// - loss.backward(), or ddp.backward(loss): over ranks, as PyTorch does. The loss is a mean over this rank's batch.
// - ddp.backward(loss_sum, count): by count. The loss is the SUM over the tokens (or samples) that count, and `count` is
//   their number. After the synchronised backward, .grad on every rank is the gradient of the mean over all tokens of
//   the optimizer step, however many tokens each rank and micro-batch contributed. One process would get the same
//   gradient for the whole batch.
//
// Rules:
// - Every rank does the same optimizer steps, each with exactly one synchronised backward (or skip).
// - All ranks and steps average in the same way.
// - The number of micro-batches under no_sync before it may differ between ranks.
// - Gradients are zeroed or set to none between optimizer steps.
// - Parameters are not frozen after construction.
// - .grad is a view of memory owned by this class, unless gradient_as_bucket_view is off.
// The module itself is not wrapped: save, load and print it as before; its names do not change.
//
// The model may be changed between steps in the same way on all ranks: loaded, converted to another element
// type, given other parameters or submodules, unfrozen. The next forward that records gradients (or skip)
// notices the change. All ranks must make that call. It compares the models as the constructor does, gives
// all ranks rank 0's values, and treats the next synchronised backward like the first one.
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
#include "runtime/ddp/options.h"
#include "runtime/ddp/outputs.h"

namespace lockstep {

/// The parameters of a module in the order of parameters(), each tensor once. parameters() lists a tensor that has two
/// names (tied weights) twice: an optimizer that gets such a list updates the tensor twice in a step.
std::vector<torch::Tensor> parameters_of(const torch::nn::Module& module);

namespace ddp {
class BufferBroadcast;
class FirstForward;
class Join;
class KnownParameters;
class Reducer;
enum class Averaging : std::uint8_t;
struct NamedTensor;
}  // namespace ddp

/// The part that does not depend on the module's type. Construct a DistributedDataParallel instead.
class DistributedDataParallelBase {
 public:
  DistributedDataParallelBase(const DistributedDataParallelBase&) = delete;
  DistributedDataParallelBase& operator=(const DistributedDataParallelBase&) = delete;

  /// Restores the previous setting when it goes out of scope. Guards must end in reverse order, and before
  /// the DistributedDataParallel that made them.
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

  /// While the guard lives, gradients are only accumulated on this rank.
  SyncGuard no_sync() { return {&sync_, false}; }

  /// no_sync() unless `last`: for loops over micro-batches.
  SyncGuard no_sync_unless(bool last) { return {&sync_, last}; }

  /// Runs backward of a loss that is a sum over `count` tokens or samples (0 or more). After a synchronised
  /// backward, gradients are final on all ranks. Throws Error naming a parameter that got no gradient, and
  /// UsageError if the loss is not a scalar or depends on no parameter, inside join(), and if the model was averaged
  /// over ranks before.
  void backward(const torch::Tensor& loss_sum, std::int64_t count);

  /// The same as loss.backward().
  void backward(const torch::Tensor& loss);

  /// Stands for a micro-batch without data on this rank: takes part in all operations of the other ranks'
  /// forward and backward.
  void skip();

  /// Drops the gradients and tokens accumulated since the last synchronised backward, instead of finishing
  /// the step. Gradients become zero; those that are none stay none. All ranks call it at the same point of
  /// their loops; it sends nothing. Throws Error after a synchronised backward that threw, because its
  /// reductions cannot be undone.
  void discard();

  /// Gives all ranks rank 0's buffers (running statistics), for example before an evaluation on all ranks.
  /// All ranks call it at the same point. Throws UsageError inside join().
  void broadcast_buffers();

  /// Chooses how gradients are summed over the ranks: fp16_compress_hook() or bf16_compress_hook()
  /// (runtime/ddp/hooks/), or a hook of your own. Call it once, before the first backward, in the same way on all
  /// ranks.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  /// Runs a training loop whose number of steps differs between ranks, and that averages over them. A rank whose loop has
  /// ended takes part with zeros in the other ranks' operations until all loops have ended. Then all ranks
  /// get the model of the rank that ended last. In the loop, each forward must be followed by its backward,
  /// and there must be no other operation that all ranks do together. On a rank whose loop has ended, .grad
  /// holds the gradients of the other ranks. Throws any exception that `loop` throws.
  void join(const std::function<void()>& loop, const JoinOptions& options = {});

  /// The sum of the counts of all ranks in the last optimizer step; 0 if gradients are averaged over ranks. On a GPU it
  /// waits until all ranks have begun the backward of that step.
  std::int64_t tokens_of_last_step() const;

  /// The options of the constructor.
  const DistributedDataParallelOptions& options() const;

  World& world() const { return world_; }

  /// The times of the last synchronised backward, bucket by bucket.
  const SyncTrace& trace() const;

  /// The internals, for Lockstep's own tests and benchmarks (runtime/ddp/reducer.h is not installed).
  const ddp::Reducer& reducer() const { return *reducer_; }

 protected:
  DistributedDataParallelBase(torch::nn::Module& module, World& world,
                              const DistributedDataParallelOptions& options);
  ~DistributedDataParallelBase();

  /// Called before the module's own forward. Throws UsageError naming a parameter that was changed in a way
  /// that is not supported, or that differs between ranks.
  void before_forward();

  /// The phase of the module's forward. The check of the model begins here.
  profile::StepTimer::Scope forward_scope();

  /// Called after the module's forward. `known`: whether `outputs` are all tensors that it returned. Throws
  /// UsageError naming a parameter that forward itself changed.
  void after_forward(const std::vector<torch::Tensor>& outputs, bool known);

  World& world_;

 private:
  void run_backward(const torch::Tensor& loss, ddp::Averaging mode, std::int64_t count);
  std::vector<torch::Tensor> buffers_to_broadcast() const;
  void print_findings(const std::vector<torch::Tensor>& outputs);
  void broadcast_buffers_of(int root, const std::vector<torch::Tensor>& buffers);
  std::vector<ddp::NamedTensor> synchronise_replicas(std::string_view why);
  void adopt_changes();

  torch::nn::Module& module_;
  comm::Communicator* device_communicator_ = nullptr;  // takes memory of the module's device
  std::unique_ptr<ddp::Reducer> reducer_;
  std::unique_ptr<ddp::KnownParameters> known_;  // those that reducer_ sums
  std::unique_ptr<ddp::BufferBroadcast> buffer_broadcast_;
  std::unique_ptr<ddp::Join> join_;                   // inside join()
  std::unique_ptr<ddp::FirstForward> first_forward_;  // while it is checked
  bool check_due_ = false;
  bool sync_ = true;
  bool broadcast_due_ = true;  // the previous forward was synchronised, or there was none
};

template <typename Module>
class DistributedDataParallel : public DistributedDataParallelBase {
 public:
  /// All ranks call it. Compares their models, and gives all ranks rank 0's parameters and buffers. Throws
  /// UsageError naming the first option, parameter or buffer that differs.
  DistributedDataParallel(std::shared_ptr<Module> module, World& world,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallelBase(*module, world, options), module_(std::move(module)) {}

  /// The same for a holder that TORCH_MODULE defines.
  DistributedDataParallel(const torch::nn::ModuleHolder<Module>& holder, World& world,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(holder.ptr(), world, options) {}

  /// Calls the module's forward, with its arguments and result types.
  template <typename... Inputs>
  auto operator()(Inputs&&... inputs) {
    before_forward();
    const auto scope = forward_scope();
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
