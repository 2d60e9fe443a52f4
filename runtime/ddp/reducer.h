// Sums gradients over the ranks while backward runs. A hook on each parameter's gradient accumulator says
// when its gradient is there; when all of a bucket's are, and those of the buckets before it, its all-reduce
// is asked for, so that all ranks ask in the same order whatever the order of arrival. finish() asks for the
// rest and waits.
//
// Threads: the training thread. Hooks run there too, since LibTorch runs backward on the CPU in the calling
// thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/bucketing.h"
#include "runtime/ddp/flat_bucket.h"
#include "runtime/ddp/options.h"
#include "runtime/ddp/replicas.h"
#include "runtime/ddp/token_average.h"
#include "runtime/profile/step_timer.h"
#include "runtime/torch_version.h"

namespace lockstep::ddp {

/// What happened in the last synchronised backward; monotonic nanoseconds.
struct SyncTrace {
  struct Launch {
    std::size_t bucket;
    std::uint64_t asked_ns;
  };
  std::vector<Launch> launches;  ///< in the order of asking
  std::uint64_t backward_ended_ns = 0;
  std::uint64_t finished_ns = 0;
};

class Reducer {
 public:
  /// `parameters` that require no gradient are left out. `sync` is the user's switch (no_sync), read at each
  /// backward.
  Reducer(comm::Communicator& communicator, profile::StepTimer& timer,
          const std::vector<NamedTensor>& parameters, const DistributedDataParallelOptions& options,
          const bool& sync);
  /// Takes the hooks off; gradients stay as they are. After a backward that threw operations may still be
  /// under way: what they work on lives until they end.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Before a backward through DistributedDataParallel. `tokens`: of this micro-batch, for Average::tokens.
  void begin(std::int64_t tokens);
  /// After it. Waits, under synchronisation. Throws Error naming a parameter without a gradient.
  void finish();
  /// A micro-batch without a backward.
  void skip();

  /// What the loss is multiplied by.
  double loss_factor() const;

  const TokenAverage& tokens() const { return tokens_; }
  const SyncTrace& trace() const { return trace_; }
  std::size_t buckets() const { return buckets_.size(); }
  /// Parameter names of each bucket, in the order in which buckets travel.
  std::vector<std::vector<std::string>> layout() const;

 private:
  struct Parameter {
    std::string name;
    torch::Tensor tensor;
    torch_compat::NodeHandle accumulator = {};  // autograd itself holds it weakly
    std::uintptr_t hook = 0;
    std::size_t bucket = 0;
    std::size_t slot = 0;
    bool ready = false;
    bool used = false;      // got a gradient since the last synchronisation
    bool had_none = false;  // .grad was undefined when the bucket needed it
  };
  struct Bucket {
    FlatBucket flat;
    std::vector<std::size_t> parameters;
    std::size_t pending = 0;
    comm::WorkHandle work;
  };
  enum class State : std::uint8_t { idle, accumulating, syncing };

  void add_hook(std::size_t index);
  void on_gradient(std::size_t index);
  void begin_outside();
  void begin_sync();
  void mark_ready(std::size_t index);
  void launch_ready_buckets();
  void take_unready(bool skipping);
  void finish_sync(bool skipping);
  void find_globally_unused();
  void build(const Assignment& assignment);
  void rebuild_once();
  Assignment assign(const std::vector<std::size_t>& order) const;

  comm::Communicator& communicator_;
  profile::StepTimer& timer_;
  DistributedDataParallelOptions options_;
  const bool& sync_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  Assignment assignment_;
  TokenAverage tokens_;
  std::shared_ptr<const double> factor_;  // of reduced gradients
  State state_ = State::idle;
  std::size_t next_bucket_ = 0;
  std::vector<std::size_t> arrived_;  // parameters in the order of their gradients in this backward
  bool rebuilt_ = false;
  comm::WorkHandle counts_;
  SyncTrace trace_;
};

}  // namespace lockstep::ddp
