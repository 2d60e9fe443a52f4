// Samples the GPU on which this rank computes, for its record: memory, how busy it is, clocks, power and errors, as NVML
// tells. Times are sums over the samples, so that a slow GPU is seen although it is fast when a report is made.
//
// Threads: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "common/nvml.h"
#include "exporters/record/layout.h"
#include "exporters/record/snapshot.h"

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

}  // namespace lockstep::profile
