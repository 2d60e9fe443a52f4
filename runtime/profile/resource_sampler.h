// Samples what the process uses, once a second (ten times a second in the first ten seconds), and publishes it in the
// rank's record: processor time, memory, page faults, reads, context switches, the limits of its cgroups, and its GPU. A thread of
// its own does this; the training thread does nothing.
//
// Threads: made and destroyed by one thread. Its thread uses the writer's set_resources().
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/job_limits.h"
#include "exporters/record/layout.h"
#include "runtime/profile/gpu_sampler.h"

namespace lockstep::record {
class Writer;
}

namespace lockstep::profile {

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
