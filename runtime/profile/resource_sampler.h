// Samples what the process uses, once a second (ten times a second in the first ten seconds), and publishes it in the
// rank's record: processor time, memory, page faults, reads, context switches, and the limits of its cgroups. A thread of
// its own does this; the training thread does nothing.
//
// Threads: made and destroyed by one thread. Its thread uses the writer's set_resources().
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "common/job_limits.h"
#include "exporters/record/layout.h"

namespace lockstep::record {
class Writer;
}

namespace lockstep::profile {

/// One sample of this process. Sources that cannot be read leave zeros.
record::Resources sample_resources(const JobLimits& limits);

class ResourceSampler {
 public:
  /// `writer` must outlive this object. If no thread can be started, there is one sample, at the end.
  explicit ResourceSampler(record::Writer& writer);
  /// Publishes a last sample.
  ~ResourceSampler();
  ResourceSampler(const ResourceSampler&) = delete;
  ResourceSampler& operator=(const ResourceSampler&) = delete;

 private:
  void work();

  record::Writer& writer_;
  const JobLimits limits_ = job_limits();
  const pid_t process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep::profile
