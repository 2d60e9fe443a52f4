// Samples what the process uses, once a second (ten times a second in the first ten seconds), and publishes it in the
// rank's record: processor time, memory, page faults, reads, context switches, the limits of its cgroups, and its GPU. A thread of
// its own does this; the training thread does nothing.
//
// Threads: made and destroyed by one thread. Its thread uses the writer's set_resources(), and the GpuSampler.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "common/job_limits.h"
#include "common/nvml.h"
#include "exporters/record/record.h"

namespace lockstep::profile {

/// The GPUs of this node that Slurm, or the user, grants to the job; 0: nothing says so.
struct GrantedGpus {
  std::uint64_t count = 0;
  std::string variable{};  ///< "SLURM_STEP_GPUS=0,1"
};
GrantedGpus granted_gpus();

/// LibTorch's allocator of GPU memory.
struct AllocatorState {
  std::uint64_t retries = 0;  ///< it got no memory from the GPU, and freed its unused blocks to get some
  std::uint64_t unused_bytes = 0;
};

/// Samples the GPU on which this rank computes: memory, how busy it is, clocks, power and errors, as NVML
/// tells. Times are sums over the samples, so that a slow GPU is seen although it is fast when a report is made.
class GpuSampler {
 public:
  /// `identity` is "GPU-" and 32 hexadecimal digits, with hyphens or without. If NVML does not work or does not show
  /// this GPU, samples are empty.
  GpuSampler(const std::string& identity, record::Identity rank);

  /// `training`: sum up times. Keeps `granted` as it is. Prints a line when the GPU reports an Xid for the first time.
  record::Gpu sample(std::uint64_t now_ns, bool training);

 private:
  void take_xids();

  std::unique_ptr<nvml::Library> library_;
  record::Identity rank_;
  std::set<std::uint64_t> printed_xids_;
  std::size_t index_ = 0;
  record::Gpu totals_;
  std::uint64_t energy_before_mj_ = 0;
  std::uint64_t last_ns_ = 0;  // of the last sample while training
};

/// One sample of this process. Sources that cannot be read leave zeros.
record::Resources sample_resources(const JobLimits& limits);

class ResourceSampler {
 public:
  /// `writer` must outlive this object. If no thread can be started, there is one sample, at the end.
  ResourceSampler(record::Writer& writer, record::Identity rank);
  /// Publishes a last sample.
  ~ResourceSampler();
  ResourceSampler(const ResourceSampler&) = delete;
  ResourceSampler& operator=(const ResourceSampler&) = delete;

  /// The GPU on which the rank computes ("GPU-…", "" if it computes on the CPU), and the GPUs that the job may use.
  /// `allocator` is called from any thread; null: not known.
  void set_gpus(std::string identity, std::uint64_t granted,
                std::function<AllocatorState()> allocator = nullptr);

 private:
  void work();
  void publish();

  record::Writer& writer_;
  const record::Identity rank_;
  const JobLimits limits_ = job_limits();
  const pid_t process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::string gpu_;
  std::uint64_t granted_gpus_ = 0;
  std::function<AllocatorState()> allocator_;
  std::unique_ptr<GpuSampler> gpu_sampler_;  // NVML needs a while to start, which this thread waits
  std::thread thread_;
};

}  // namespace lockstep::profile
