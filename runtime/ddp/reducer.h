// Sums gradients over the ranks while backward runs. A hook on each parameter's gradient accumulator says
// when its gradient is there; when all of a bucket's are, and those of the buckets before it, its reduction
// is asked for, so that all ranks ask in the same order whatever the order of arrival. finish() asks for the
// rest and waits.
//
// The first synchronised backward is for learning: how many gradients each parameter gets (more than one
// where checkpointing runs backwards inside of backward), in which order, and which get none. At its end the
// buckets are made, in that order, gradients move into them, and they leave. So at no time there is more
// memory than gradients and one bucket.
//
// Threads: the training thread, and the thread that runs backward while that waits for it.
#pragma once

#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/autograd_hooks.h"
#include "runtime/ddp/bucket_size.h"
#include "runtime/ddp/bucketing.h"
#include "runtime/ddp/comm_hook.h"
#include "runtime/ddp/flat_bucket.h"
#include "runtime/ddp/lateness.h"
#include "runtime/ddp/options.h"
#include "runtime/ddp/replicas.h"
#include "runtime/ddp/token_average.h"
#include "runtime/profile/step_timer.h"

namespace lockstep::ddp {

/// What happened in the last synchronised backward; monotonic nanoseconds.
struct SyncTrace {
  struct Launch {
    std::size_t bucket = 0;
    std::size_t bytes = 0;
    std::uint64_t ready_ns = 0;  ///< its last gradient was there
    std::uint64_t asked_ns = 0;
    std::uint64_t all_asked_ns = 0;  ///< the last rank asked; 0: not known (between nodes: one step later)
    int last_rank = -1;              ///< which rank that was; -1: not known
    std::uint64_t done_ns = 0;
  };
  std::vector<Launch> launches;  ///< in the order of asking
  std::uint64_t backward_began_ns = 0;
  std::uint64_t backward_ended_ns = 0;
  std::uint64_t finished_ns = 0;
};

/// Lives as long as a call of ddp.backward(), of any model.
class BackwardCall {
 public:
  BackwardCall() { ++running_; }
  ~BackwardCall() { --running_; }
  BackwardCall(const BackwardCall&) = delete;
  BackwardCall& operator=(const BackwardCall&) = delete;

  static bool is_running() { return running_ > 0; }

 private:
  static inline std::atomic<int> running_ = 0;
};

class Reducer {
 public:
  /// `communicator` takes host memory; `gradients` the memory of the parameters' device, and is the same one
  /// on the CPU. `parameters` that require no gradient are left out. `sync` is the user's switch (no_sync),
  /// read at each backward.
  Reducer(comm::Communicator& communicator, comm::Communicator& gradients, profile::StepTimer& timer,
          const std::vector<NamedTensor>& parameters, const DistributedDataParallelOptions& options,
          const bool& sync);
  /// Takes the hooks off; gradients stay as they are. After a backward that threw operations may still be
  /// under way: what they work on lives until they end.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Throws UsageError where there is one already.
  void register_comm_hook(std::shared_ptr<CommHook> hook);

  /// Before a forward that records gradients. Throws Error where a synchronised backward did not end.
  void before_forward();

  /// From now on sums the gradients of these; those that require none are left out. Between before_forward()
  /// and watch(), on all ranks alike. What was accumulated in this step is kept, options and hook too; the
  /// next synchronised backward is learned from like the first. Throws UsageError naming a parameter whose
  /// gradient cannot be summed.
  void attach(const std::vector<NamedTensor>& parameters);

  /// After forward: backward from these will synchronise, also by loss.backward().
  void watch(const std::vector<torch::Tensor>& outputs);

  /// Before a backward through DistributedDataParallel. `tokens`: of this micro-batch, for Average::tokens.
  void begin(std::int64_t tokens);
  /// After it. Waits, under synchronisation. Throws Error naming a parameter without a gradient.
  void finish();
  /// A micro-batch without a backward.
  void skip();
  /// A step without any gradient of this rank's.
  void shadow();

  /// Whether operations carry the optimizer step's number (communicator.h, set_step), so that a rank that is
  /// a step ahead is named. Not inside join, where a rank that has ended makes no steps.
  void count_steps(bool on);

  /// Whether a gradient accumulated in the step under way no longer fits this parameter, so that attach()
  /// throws.
  bool accumulated_in_another_shape(const torch::Tensor& tensor) const;

  /// Forgets what was accumulated since the last synchronised backward.
  void discard();

  /// Why a registered hook does not go with join; empty: nothing is against it.
  std::string refuses_join() const { return comm_hook_ ? comm_hook_->refuses_join() : std::string(); }

  /// Whether parameters get other memory without the user's doing.
  bool hook_moves_parameters() const { return comm_hook_ && comm_hook_->moves_parameters(); }

  /// What the loss is multiplied by.
  double loss_factor() const;

  /// What reduced gradients are multiplied by under Average::ranks; read when buckets are reduced.
  const std::shared_ptr<double>& rank_factor() const { return rank_factor_; }

  /// As given, with bucket sizes as they are now.
  const DistributedDataParallelOptions& options() const { return options_; }

  const TokenAverage& tokens() const { return tokens_; }
  const SyncTrace& trace() const { return trace_; }
  /// The newest step's communication of which everything is known (between nodes: the step before the last).
  const CommShare& comm_share() const { return comm_share_; }
  std::size_t buckets() const { return buckets_.size(); }
  /// Parameter names of each bucket, in the order in which buckets travel.
  std::vector<std::vector<std::string>> layout() const;

 private:
  struct Parameter {
    std::string name;
    torch::Tensor tensor;
    bool sparse = false;
    std::size_t bucket = 0;
    std::size_t slot = 0;
    std::uint32_t expected = 1;  // gradients in a backward, as learned
    std::uint32_t hits = 0;      // gradients in this one
    std::uint64_t ready_ns = 0;
    bool ready = false;
    bool written_off = false;  // taken as unused before backward
    bool reached = false;      // from the outputs of a forward since the last synchronisation
    bool used = false;         // got a gradient since the last synchronisation
    bool used_anywhere = true;
    bool had_none = false;  // .grad was undefined when the bucket needed it
  };
  struct Bucket {
    std::optional<FlatBucket> flat;  // none for a sparse gradient
    std::optional<GradBucket> view;
    std::vector<std::size_t> parameters;
    std::size_t pending = 0;
    comm::WorkHandle work;
    CommFuture future;  // where a hook, or a sparse gradient, needs more than that
    torch::Tensor sparse_sum;
  };
  enum class State : std::uint8_t { idle, accumulating, syncing };

  // reducer_attach.cpp
  void put_hooks_on(const std::vector<torch::Tensor>& tensors);
  void refuse_outdated(std::size_t index) const;

  // reducer.cpp: in backward
  void on_gradient(std::size_t index);
  void arrived_again(std::size_t index);
  void arm();
  void leave_backward();
  void begin_outside(const std::string& parameter);
  void begin_sync();
  void count_step();
  void write_off_unused();
  void mark_ready(std::size_t index);
  void take_gradient(std::size_t index);
  void launch_ready_buckets();
  void launch(std::size_t index);

  // reducer_end.cpp: after it
  void finish_sync(bool skipping);
  static void refuse_frozen(const Parameter& parameter);
  void learn(bool skipping);
  void take_unready(bool skipping);
  void ask_who_is_used();
  void wait_for_buckets();
  void wait_for_futures();
  void give_back_gradients();
  void note_times();

  // reducer_layout.cpp
  Assignment assign(const std::vector<std::size_t>& order) const;
  void plan(const Assignment& assignment);
  void allocate();
  void lay_out_first();
  void rebuild_once();
  void take_over_order();
  void lay_out();
  void tune_once(std::span<const ReductionTimes> reductions);
  std::vector<ParameterSize> sizes() const;

  bool on_device() const { return gradients_.device() >= 0; }

  comm::Communicator& communicator_;
  comm::Communicator& gradients_;
  profile::StepTimer& timer_;
  DistributedDataParallelOptions options_;
  const bool& sync_;
  std::vector<Parameter> parameters_;
  std::unique_ptr<GradientHooks> hooks_;
  std::unique_ptr<GradientHooks> outdated_hooks_;  // until the next synchronised backward has ended
  std::vector<std::pair<std::string, torch::Tensor>> outdated_;  // what these are on
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> order_;  // of parameters, from which buckets are filled
  TokenAverage tokens_;
  std::shared_ptr<double> rank_factor_;
  std::shared_ptr<const double> factor_;  // of reduced gradients
  std::shared_ptr<CommHook> comm_hook_;
  double hooks_scale_ = 1;  // loss_factor() that the hook last saw
  State state_ = State::idle;
  bool armed_ = false;      // the end of this backward will be told
  bool learning_ = true;    // no backward was synchronised yet
  bool launching_ = false;  // buckets leave as soon as they are ready
  bool walked_ = false;     // `reached` says which parameters forward used
  bool settled_ = false;    // static_graph: used_anywhere is known for good
  bool counts_steps_ = true;
  std::int64_t step_ = 0;               // of the optimizer; 1 is the first
  std::optional<std::uint64_t> trait_;  // of all parameters, in the last backward
  int unseen_forwards_ = 0;             // under no_sync, whose backward did not come yet
  std::size_t next_bucket_ = 0;
  std::vector<std::size_t> arrived_;  // parameters in the order of their gradients in this backward
  bool laid_out_ = false;             // buckets have memory
  bool rebuilt_ = false;
  std::unique_ptr<BucketTuner> tuner_;
  comm::WorkHandle counts_;
  comm::WorkHandle used_asked_;
  std::shared_ptr<std::vector<std::uint8_t>> used_;  // of all parameters; kept by the operation
  Lateness lateness_;
  std::vector<comm::WorkTimes> first_stage_;  // of buckets with a future
  CommShare comm_share_;
  SyncTrace trace_;
  std::shared_ptr<Reducer> self_;  // for those that must not keep it alive; owns nothing
};

}  // namespace lockstep::ddp
