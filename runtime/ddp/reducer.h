// Sums gradients over the ranks while backward runs. A hook on each parameter's gradient accumulator reports
// when its gradient is complete. A bucket's reduction starts when all its gradients, and those of the buckets
// before it, are complete. So all ranks start reductions in the same order, even if gradients arrive in
// another order. finish() starts the rest and waits.
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
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/autograd_hooks.h"
#include "runtime/ddp/bucketing.h"
#include "runtime/ddp/comm_hook.h"
#include "runtime/ddp/device_factor.h"
#include "runtime/ddp/flat_bucket.h"
#include "runtime/ddp/gradient_average.h"
#include "runtime/ddp/options.h"
#include "runtime/ddp/replica_check.h"
#include "runtime/ddp/replicas.h"
#include "runtime/ddp/step_message.h"
#include "runtime/ddp/sync_observer.h"
#include "runtime/profile/step_timer.h"

namespace lockstep::ddp {

/// Exists while a ddp.backward(loss_sum, count) runs, of any model in this process.
class CountedBackward {
 public:
  CountedBackward() { ++running_; }
  ~CountedBackward() { --running_; }
  CountedBackward(const CountedBackward&) = delete;
  CountedBackward& operator=(const CountedBackward&) = delete;

  static bool is_running() { return running_ > 0; }

 private:
  static inline std::atomic<int> running_ = 0;
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

  /// The options of the constructor, with the current sizes of buckets.
  const DistributedDataParallelOptions& options() const { return options_; }

  const GradientAverage& average() const { return average_; }
  /// As GradientAverage says. On a device it waits until all ranks have begun that backward.
  std::int64_t count_of_last_step() const {
    return message_.pending() > 0 ? message_.newest_count() : average_.count_of_last_step();
  }
  const SyncObserver& observer() const { return observer_; }
  /// Parameter names of each bucket, in the order in which buckets travel.
  std::vector<std::vector<std::string>> layout() const;

 private:
  struct Parameter {
    std::string name;
    torch::Tensor tensor;
    std::size_t bucket = 0;
    std::size_t slot = 0;
    std::uint32_t expected = 1;  // gradients per backward, as learned
    std::uint32_t arrived = 0;   // gradients in this backward
    bool ready = false;
    bool assumed_unused = false;  // since before this backward
    bool reached = false;         // from the outputs of a forward since the last synchronisation
    bool used = false;            // got a gradient since the last synchronisation
    bool used_anywhere = true;    // the same on any rank
    bool had_none = false;        // .grad was undefined when the bucket needed it
    // Of .grad after a synchronised backward by count: its memory, and the changes that LibTorch has counted.
    const void* averaged = nullptr;
    std::uint32_t averaged_version = 0;
  };
  struct Bucket {
    std::optional<FlatBucket> flat;
    std::optional<GradBucket> view;  // of `flat`, for hooks
    std::vector<std::size_t> parameters;
    std::size_t pending = 0;  // parameters that are not ready
    comm::WorkHandle work;    // the reduction; a hook has `future` instead
    CommFuture future;
  };
  /// The state of one backward: idle → armed → accumulating | collecting | launching → idle. ddp.backward() and gradients
  /// of unknown outputs leave `armed` out. Collecting becomes launching when backward has ended. If backward throws,
  /// reset_after_throw() ends `armed` and `accumulating`; the synchronised ones stay.
  enum class State : std::uint8_t {
    idle,
    armed,         // reached an output of forward, so that a callback at its end is queued
    accumulating,  // gradients stay on this rank
    collecting,    // synchronised; reductions start at its end
    launching,     // synchronised; reductions start as soon as their buckets are ready
  };
  /// Of the buckets; attach() makes them assigned.
  enum class Layout : std::uint8_t {
    assigned,   // without memory
    allocated,  // in another order than that of rank 0's gradients, which is not known yet
    ordered,
  };

  // reducer_attach.cpp
  void put_hooks_on(const std::vector<torch::Tensor>& tensors);
  void refuse_outdated(std::size_t index) const;

  // reducer.cpp: during backward
  void on_gradient(std::size_t index);
  void arrived_again(std::size_t index);
  void refuse_averaged_gradients();
  void arm();
  void begin_plain_backward(const std::string& parameter);
  void begin_backward();
  void begin_sync();
  std::uint64_t sample_parameters() const;
  void count_step();
  void send_message();
  void receive_messages();
  void assume_unused();
  void mark_ready(std::size_t index);
  void take_gradient(std::size_t index);
  void launch_ready_buckets();
  void launch(std::size_t index);

  // reducer_end.cpp: after backward
  void finish_sync(bool skipping);
  static void refuse_frozen(const Parameter& parameter);
  void learn(bool skipping);
  void take_unready(bool skipping);
  void exchange_used_flags();
  void wait_for_buckets();
  void wait_for_futures();
  void give_back_gradients();
  void note_averaged_gradients();

  // reducer_layout.cpp
  Assignment assign(const std::vector<std::size_t>& order) const;
  void plan(const Assignment& assignment);
  void allocate();
  void lay_out_first();
  void rebuild_once();
  void adopt_gradient_order();
  void lay_out();

  bool on_device() const { return device_communicator_.device() >= 0; }
  std::shared_ptr<const double> factor_on_host() const;
  std::optional<record::Collective> collective() const;
  // Whether this step's message is received in the next step, so that the host does not wait for the other ranks.
  bool receives_later() const;
  bool syncing() const { return state_ == State::collecting || state_ == State::launching; }

  comm::Communicator& host_communicator_;
  comm::Communicator& device_communicator_;
  profile::StepTimer& timer_;
  DistributedDataParallelOptions options_;
  const bool& sync_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<GradientHooks> hooks_;
  std::unique_ptr<GradientHooks> outdated_hooks_;  // until the next synchronised backward has ended
  std::vector<std::pair<std::string, torch::Tensor>> outdated_parameters_;  // the parameters of those hooks
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> order_;  // of the parameters in the buckets
  GradientAverage average_;
  DeviceFactor device_factor_;
  std::shared_ptr<CommHook> comm_hook_;
  bool gradients_averaged_ = false;  // by count, and no micro-batch has begun since
  State state_ = State::idle;
  Layout layout_ = Layout::assigned;
  bool learning_ = true;        // until the end of the first synchronised backward
  bool graph_walked_ = false;   // `reached` shows which parameters forward used
  bool usage_settled_ = false;  // static_graph: used_anywhere no longer changes
  bool counts_steps_ = true;
  std::int64_t step_ = 0;                     // of the optimizer; the first one is 1
  std::optional<std::uint64_t> last_sample_;  // of all parameters, in the last backward
  int unseen_forwards_ = 0;                   // forwards under no_sync whose backward did not come yet
  std::size_t next_bucket_ = 0;
  std::vector<std::size_t> arrivals_;  // parameters in the order of their gradients in this backward
  StepMessage message_;
  StepSummary summary_;  // of the message that was received in this backward
  comm::WorkHandle used_exchange_;
  std::shared_ptr<std::vector<std::uint8_t>> used_;  // of all parameters; kept by used_exchange_
  ReplicaCheck replica_check_;
  SyncObserver observer_;
  std::shared_ptr<Reducer> self_;  // owns nothing; hooks and callbacks hold it weakly
};

}  // namespace lockstep::ddp
