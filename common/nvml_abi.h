// The part of the binary interface of NVIDIA's management library (NVML, libnvidia-ml.so.1) that Lockstep calls, as
// NVIDIA's reference documents it. Debian has no header of NVML. The library is opened at run time (nvml.h), so nothing
// links these functions; tests/device implements them.
//
// Threads: NVML's functions are safe from any.
#pragma once

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
