// Samples the GPU on which this rank computes, for its record: memory, how busy it is, clocks, power and errors, as NVML
// tells. Times are sums over the samples, so that a slow GPU is seen although it is fast when a report is made.
//
// Threads: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/nvml.h"
#include "exporters/record/layout.h"

namespace lockstep::profile {

/// The GPUs of this node that Slurm, or the user, grants to the job; 0: nothing says so.
struct GrantedGpus {
  std::uint64_t count = 0;
  std::string variable{};  ///< "SLURM_STEP_GPUS=0,1"
};
GrantedGpus granted_gpus();

class GpuSampler {
 public:
  /// `identity` is "GPU-" and 32 hexadecimal digits, with hyphens or without. If NVML does not work or does not show
  /// this GPU, samples are empty. `rank` is "rank 3 on n2".
  GpuSampler(const std::string& identity, std::string rank);

  /// `training`: sum up times. Keeps `granted` as it is. Prints a line for each Xid, the driver's number of an error of the
  /// GPU, that came since the last sample.
  record::Gpu sample(std::uint64_t now_ns, bool training);

 private:
  std::string rank_;
  std::unique_ptr<nvml::Library> library_;
  std::size_t index_ = 0;
  record::Gpu totals_;
  std::uint64_t energy_before_mj_ = 0;
  std::uint64_t last_ns_ = 0;  // of the last sample while training
};

}  // namespace lockstep::profile
