// What NVIDIA's driver tells about the GPUs of this node, through its management library (NVML), which is opened at run
// time: a node without a GPU needs nothing, and a build needs no header of it.
//
// Threads: safe from any after open().
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

// The part of NVML's binary interface that is called, as NVIDIA's reference documents it. Nothing links these functions;
// tests/device implements them.

namespace lockstep::nvml {

struct DeviceHandle;
using Device = DeviceHandle*;

struct Memory {
  unsigned long long total;  ///< bytes, as the next ones
  unsigned long long free;
  unsigned long long used;
};

struct EventSetHandle;
using EventSet = EventSetHandle*;

struct Event {
  Device device;
  unsigned long long type;
  unsigned long long data;  ///< of kXidEvent: the Xid
  unsigned gpu_instance;
  unsigned compute_instance;
};

struct Utilization {
  unsigned
      gpu;  ///< percent of the last sample period (a sixth of a second to a second) in which a kernel ran
  unsigned memory;
};

// Results of all functions.
inline constexpr int kSuccess = 0;
inline constexpr int kNotSupported = 3;
inline constexpr int kDriverNotLoaded = 9;
inline constexpr int kTimeout = 10;
inline constexpr int kVersionMismatch = 18;  ///< of the library and the driver

inline constexpr int kClockSm = 1;
inline constexpr int kClockMemory = 2;
inline constexpr int kEccCorrected = 0;
inline constexpr int kEccUncorrected = 1;
inline constexpr int kEccSinceDriverLoad = 0;
inline constexpr int kP2pRead = 0;
inline constexpr int kP2pOk = 0;
inline constexpr unsigned long long kXidEvent = 0x8;

// Bits of the reasons for lower clocks.
inline constexpr unsigned long long kPowerCap = 0x4;
inline constexpr unsigned long long kHardwareSlowdown = 0x8;
inline constexpr unsigned long long kSoftwareThermal = 0x20;
inline constexpr unsigned long long kHardwareThermal = 0x40;
inline constexpr unsigned long long kPowerBrake = 0x80;

}  // namespace lockstep::nvml

extern "C" {
int nvmlInit_v2();
int nvmlShutdown();
const char* nvmlErrorString(int result);
int nvmlSystemGetDriverVersion(char* version, unsigned bytes);
int nvmlSystemGetCudaDriverVersion_v2(int* version);  // 12040 is 12.4
int nvmlDeviceGetCount_v2(unsigned* count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, lockstep::nvml::Device* device);
int nvmlDeviceGetUUID(lockstep::nvml::Device device, char* uuid, unsigned bytes);
int nvmlDeviceGetName(lockstep::nvml::Device device, char* name, unsigned bytes);
int nvmlDeviceGetMemoryInfo(lockstep::nvml::Device device, lockstep::nvml::Memory* memory);
int nvmlDeviceGetUtilizationRates(lockstep::nvml::Device device, lockstep::nvml::Utilization* utilization);
int nvmlDeviceGetClockInfo(lockstep::nvml::Device device, int clock, unsigned* mhz);
int nvmlDeviceGetMaxClockInfo(lockstep::nvml::Device device, int clock, unsigned* mhz);
int nvmlDeviceGetCurrentClocksThrottleReasons(lockstep::nvml::Device device, unsigned long long* reasons);
int nvmlDeviceGetPowerUsage(lockstep::nvml::Device device, unsigned* milliwatts);
int nvmlDeviceGetTotalEnergyConsumption(lockstep::nvml::Device device, unsigned long long* millijoules);
int nvmlDeviceGetTotalEccErrors(lockstep::nvml::Device device, int type, int counter,
                                unsigned long long* errors);
int nvmlDeviceGetPersistenceMode(lockstep::nvml::Device device, int* enabled);
int nvmlDeviceGetMigMode(lockstep::nvml::Device device, unsigned* current, unsigned* pending);
int nvmlDeviceGetP2PStatus(lockstep::nvml::Device from, lockstep::nvml::Device to, int capability,
                           int* status);
int nvmlEventSetCreate(lockstep::nvml::EventSet* set);
int nvmlEventSetFree(lockstep::nvml::EventSet set);
int nvmlDeviceRegisterEvents(lockstep::nvml::Device device, unsigned long long types,
                             lockstep::nvml::EventSet set);
int nvmlEventSetWait_v2(lockstep::nvml::EventSet set, lockstep::nvml::Event* event, unsigned milliseconds);
}

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
