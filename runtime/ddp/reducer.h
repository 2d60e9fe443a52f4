// Sums gradients over the ranks while backward runs. A hook on each parameter's gradient accumulator reports when its
// gradient is complete. Buckets (buckets.h) hold the gradients, and a Backward (backward.h) starts their reductions.
//
// In the first synchronised backward the reducer learns how many gradients each parameter gets (more than one
// if checkpointing runs backwards inside backward), the order of their arrival, and the parameters that get
// none. At its end the buckets are laid out in that order, gradients move into them, and the reductions
// start. So memory use never exceeds the gradients and one bucket.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/autograd_hooks.h"
#include "runtime/ddp/backward.h"
#include "runtime/ddp/buckets.h"
#include "runtime/ddp/comm_hook.h"
#include "runtime/ddp/device_factor.h"
#include "runtime/ddp/gradient_average.h"
#include "runtime/ddp/options.h"
#include "runtime/ddp/replicas.h"
#include "runtime/ddp/step_message.h"
#include "runtime/ddp/sync_observer.h"
#include "runtime/profile/step_timer.h"

namespace lockstep::ddp {

/// Exists while a ddp.backward(loss_sum, count) runs, of any model in this process.
struct CountedBackward {
  CountedBackward() { ++running; }
  ~CountedBackward() { --running; }
  CountedBackward(const CountedBackward&) = delete;
  CountedBackward& operator=(const CountedBackward&) = delete;

  static inline std::atomic<int> running = 0;
};

class Reducer {
 public:
  /// One communicator takes host memory, the other one memory of the parameters' device; on the CPU they are the same
  /// one. `parameters` that require no gradient are ignored. `sync` is the user's
  /// switch (no_sync); it is read at each backward.
  Reducer(comm::Communicator& host_communicator, comm::Communicator& device_communicator,
          profile::StepTimer& timer, const std::vector<NamedTensor>& parameters,
          const DistributedDataParallelOptions& options, const bool& sync);
  /// Removes the hooks; gradients stay as they are. After a backward that threw, operations may still be
  /// running: the memory that they use lives until they end.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Throws UsageError if there is a hook already.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  /// Call it before a forward that records gradients: clears the state after a backward that threw. Gradients
  /// accumulated on this rank alone can be dropped, but reductions that other ranks take part in cannot be cancelled:
  /// throws Error if a synchronised backward did not end.
  void reset_after_throw();

  /// Sums the gradients of these parameters from now on; those that require none are ignored. All ranks call
  /// it in the same way, between reset_after_throw() and arm_from(). Keeps the options, the hook and the gradients
  /// that were accumulated in this step. The next synchronised backward is treated like the first one. Throws
  /// UsageError naming a parameter whose gradient cannot be summed.
  void attach(const std::vector<NamedTensor>& parameters);

  /// Call it after forward: a backward from these outputs will synchronise, even one by loss.backward().
  void arm_from(const std::vector<torch::Tensor>& outputs);

  /// Call it before a backward through DistributedDataParallel. `count`: of this micro-batch, for
  /// Averaging::by_count. Throws UsageError if an earlier backward averaged in another way.
  void begin(Averaging mode, std::int64_t count);
  /// Call it after that backward. Waits if the backward was synchronised. Throws Error naming a parameter
  /// without a gradient.
  void finish();
  /// A micro-batch without a backward.
  void skip();
  /// A step in which this rank has no gradients at all.
  void contribute_zeros();

  /// Whether operations carry the number of the optimizer step (communicator.h, set_step), so that an error
  /// can name a rank that is a step ahead. Off inside join, where a rank that has ended does no steps.
  void count_steps(bool on);

  /// Whether the gradient accumulated for this parameter in the current step has another shape than the
  /// parameter, so that attach() would throw.
  bool accumulated_in_another_shape(const torch::Tensor& tensor) const;

  /// Drops the gradients and tokens accumulated since the last synchronised backward.
  void discard();

  /// Why the registered hook does not work with join; empty if it does.
  std::string refuses_join() const { return comm_hook_ ? comm_hook_->refuses_join() : std::string(); }

  /// Whether the hook itself gives parameters other memory, so that this is not a change by the user.
  bool hook_moves_parameters() const { return comm_hook_ && comm_hook_->moves_parameters(); }

  /// The options of the constructor.
  const DistributedDataParallelOptions& options() const { return options_; }

  const GradientAverage& average() const { return average_; }
  /// As GradientAverage says. On a device it waits until all ranks have begun that backward.
  std::int64_t count_of_last_step() const {
    return message_.pending() > 0 ? message_.newest_count() : average_.count_of_last_step();
  }
  const SyncObserver& observer() const { return observer_; }
  /// Parameter names of each bucket, in the order in which buckets travel.
  std::vector<std::vector<std::string>> layout() const { return buckets_->layout(); }

 private:
  /// Of the graph that runs now. If it throws, reset_after_throw() makes it idle.
  enum class State : std::uint8_t {
    idle,
    armed,    // it reached an output of forward, and calls finish() at its end
    running,  // it accumulates gradients
  };
  /// A .grad after a synchronised backward by count: its memory, and the changes that LibTorch has counted.
  struct AveragedGradient {
    std::size_t parameter = 0;
    const void* memory = nullptr;
    std::int64_t version = 0;
  };

  bool accumulated(const torch::Tensor& tensor) const;
  void put_hooks_on(const std::vector<NamedTensor>& trained);
  void refuse_outdated(const NamedTensor& parameter, const torch_compat::NodeHandle& accumulator) const;

  // From the begin of a backward to its end.
  void on_gradient(std::size_t index);
  void arm();
  void refuse_averaged_gradients();
  void note_averaged_gradients();
  void count_step();
  void begin_plain_backward(const std::string& parameter);
  void begin_backward();
  void send_message();
  void receive_messages();
  CommFuture reduce(Bucket& bucket);
  void end_synchronised(bool skipping);
  void lay_out();
  comm::WorkHandle exchange_usage();
  void scale_means();
  void forget_accumulated();

  const std::vector<NamedTensor>& parameters() const { return buckets_->parameters(); }
  bool on_device() const { return device_communicator_.device() >= 0; }
  std::optional<record::Collective> collective() const;
  // Whether this step's message is received in the next step, so that the host does not wait for the other ranks.
  bool receives_later() const { return on_device() && average_.agreed(); }

  comm::Communicator& host_communicator_;
  comm::Communicator& device_communicator_;
  profile::StepTimer& timer_;
  DistributedDataParallelOptions options_;
  const bool& sync_;
  std::unique_ptr<GradientHooks> hooks_;
  std::vector<std::unique_ptr<GradientHooks>>
      outdated_hooks_;  // until the next synchronised backward has ended
  std::size_t attachments_ = 0;
  std::optional<Buckets> buckets_;  // of the parameters that have hooks_
  GradientAverage average_;
  DeviceFactor device_factor_;
  StepMessage message_;
  std::shared_ptr<CommHook> comm_hook_;

  // As synchronised backwards have shown; by parameter.
  std::vector<std::uint32_t> expected_;  // gradients in each backward; empty until this rank had one
  // Whether any rank used the parameter; the last one: whether a rank has only skipped so far. Kept by the exchange.
  std::shared_ptr<std::vector<std::uint8_t>> used_anywhere_;
  bool ordered_ = false;  // buckets_ have the order of rank 0's gradients

  // Since the last synchronised backward; by parameter.
  std::vector<std::uint8_t> used_;           // whether the parameter got a gradient
  std::vector<bool> reached_;                // from the outputs of forwards; empty: not known
  std::set<std::uint64_t> unseen_forwards_;  // under no_sync, whose backward did not come yet
  std::vector<AveragedGradient> averaged_;   // until the next micro-batch begins

  std::uint64_t forwards_ = 0;
  bool counts_steps_ = true;
  std::int64_t step_ = 0;                     // of the optimizer; the first one is 1
  std::optional<std::uint64_t> last_sample_;  // of all parameters, in the last backward
  ReplicaCheck replica_check_;
  SyncObserver observer_;
  State state_ = State::idle;
  std::unique_ptr<Backward> backward_;  // if it is synchronised; stays if it throws
  std::shared_ptr<Reducer> self_;       // owns nothing; hooks and callbacks hold it weakly
};

}  // namespace lockstep::ddp
