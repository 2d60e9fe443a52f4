// What NVIDIA's driver tells about the GPUs of this node, through its management library (NVML), which is opened at run
// time: a node without a GPU needs nothing, and a build needs no header of it.
//
// Threads: safe from any after open().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/nvml_abi.h"

namespace lockstep::nvml {

/// A GPU now. nullopt: this GPU or its driver does not tell it.
struct State {
  std::optional<Memory> memory{};  ///< none in MIG mode, where jobs share it
  std::optional<unsigned> busy_percent{};
  std::optional<unsigned> sm_mhz{};
  std::optional<unsigned> sm_max_mhz{};
  std::optional<unsigned> memory_mhz{};
  std::optional<unsigned long long> throttle_reasons{};
  std::optional<unsigned> power_mw{};
  std::optional<unsigned long long> energy_mj{};      ///< since the driver was loaded
  std::optional<unsigned long long> ecc_corrected{};  ///< since the driver was loaded
  std::optional<unsigned long long> ecc_uncorrected{};
  std::optional<bool> persistence{};
  std::optional<bool> mig{};

  /// Slower because of heat or of the power supply, which is a fault. Nothing is wrong with a GPU at its power limit.
  bool slowed() const {
    return (throttle_reasons.value_or(0) &
            (kHardwareSlowdown | kSoftwareThermal | kHardwareThermal | kPowerBrake)) != 0;
  }
};

/// Whether the program's kernels cause errors with this number, rather than the GPU, its links or the driver.
constexpr bool xid_of_program(unsigned long long xid) {
  return xid == 13 || xid == 31 || xid == 43 || xid == 45 || xid == 68 || xid == 109;
}

class Library {
 public:
  /// Null if this node does not have the library, or no driver is loaded. Throws Error if there is a driver and the
  /// library does not work.
  static std::unique_ptr<Library> open(const char* name = "libnvidia-ml.so.1");
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  std::string driver_version() const;  ///< "550.54.15"
  std::string cuda_version() const;    ///< the newest that the driver can run: "12.4"

  /// The GPUs that this process can see. NVML does not follow CUDA_VISIBLE_DEVICES.
  std::size_t gpus() const { return devices_.size(); }
  std::string uuid(std::size_t gpu) const;  ///< "GPU-" and five groups of hexadecimal digits
  std::string name(std::size_t gpu) const;  ///< "NVIDIA H100 80GB HBM3"
  State state(std::size_t gpu) const;
  /// Whether one GPU can read the other's memory without the host's; true if the driver does not tell.
  bool reads(std::size_t gpu, std::size_t other) const;

  /// From now on next_xid() has the errors of this GPU that the driver reports.
  void watch_xids(std::size_t gpu);
  /// The number of the oldest one that was not returned yet; nullopt if there is none. Does not wait.
  std::optional<unsigned long long> next_xid();

 private:
  explicit Library(void* handle) : handle_(handle) {}

  template <typename Function, typename... Arguments>
  int call(const char* name, Arguments... arguments) const;
  template <typename Function, typename Value, typename... Arguments>
  void ask(const char* name, std::optional<Value>& field, Arguments... arguments) const;

  void* handle_;
  std::vector<Device> devices_;
  EventSet xids_ = nullptr;
};

}  // namespace lockstep::nvml
