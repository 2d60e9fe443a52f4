// A simulated NVML for the tests. The file that SIMULATED_NVML names has its values, and is read again at each call:
//   gpus 2            GPUs of the node (8 if it is not given)
//   init 18           the result of nvmlInit_v2
//   sm_mhz 1410       of all GPUs
//   1.sm_mhz 690      of GPU 1
//   power_mw none     GPU and driver do not tell it
//   0.p2p_1 3         the status of reads from GPU 0 in GPU 1
//   1.xid 79          GPU 1 reports it, once for each line
#include "common/nvml.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace lockstep::nvml;

// Of all lines with this name; nullopt for "none".
std::vector<std::optional<unsigned long long>> values_of(const std::string& name) {
  std::vector<std::optional<unsigned long long>> values;
  const char* const path = std::getenv("SIMULATED_NVML");
  std::ifstream file(path == nullptr ? "" : path);
  std::string word;
  std::string number;
  while (file >> word >> number) {
    if (word != name) continue;
    values.push_back(number == "none" ? std::nullopt
                                      : std::optional(std::strtoull(number.c_str(), nullptr, 0)));
  }
  return values;
}

std::optional<unsigned long long> value_of(const std::string& name, unsigned long long fallback) {
  const auto values = values_of(name);
  return values.empty() ? fallback : values.back();
}

struct Events {
  Device device = nullptr;
  std::size_t returned = 0;
};

// Handles are the index + 1.
std::size_t index_of(Device device) {
  return reinterpret_cast<std::size_t>(device) - 1;
}

template <typename Value>
int tell(Device device, const std::string& name, unsigned long long fallback, Value* value) {
  const auto of_all = value_of(name, fallback);
  const std::string own = std::to_string(index_of(device)) + "." + name;
  // A number for this GPU alone, or "none" for it, goes first.
  const auto known = of_all ? value_of(own, *of_all) : value_of(own, ~0ULL);
  if (!known || *known == ~0ULL) return kNotSupported;
  *value = static_cast<Value>(*known);
  return kSuccess;
}

int tell_text(const std::string& text, char* into, unsigned bytes) {
  std::snprintf(into, bytes, "%s", text.c_str());
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return static_cast<int>(*value_of("init", kSuccess));
}

int nvmlShutdown() {
  return kSuccess;
}

const char* nvmlErrorString(int result) {
  return result == kVersionMismatch ? "Driver/library version mismatch" : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char* version, unsigned bytes) {
  return tell_text("550.54.15", version, bytes);
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 12040;
  return kSuccess;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(*value_of("gpus", 8));
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  *device = reinterpret_cast<Device>(std::size_t{index} + 1);
  return kSuccess;
}

// Those of the simulated CUDA runtime.
int nvmlDeviceGetUUID(Device device, char* uuid, unsigned bytes) {
  std::snprintf(uuid, bytes, "GPU-51515151-5151-5151-5151-5151515151%02zx", index_of(device));
  return kSuccess;
}

int nvmlDeviceGetName(Device, char* name, unsigned bytes) {
  return tell_text("simulated device", name, bytes);
}

int nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
  if (const int result = tell(device, "memory_total", 64ULL << 30U, &memory->total); result != kSuccess) {
    return result;
  }
  return tell(device, "memory_used", 48ULL << 30U, &memory->used);
}

int nvmlDeviceGetUtilizationRates(Device device, Utilization* utilization) {
  return tell(device, "busy_percent", 95, &utilization->gpu);
}

int nvmlDeviceGetClockInfo(Device device, int clock, unsigned* mhz) {
  return clock == kClockSm ? tell(device, "sm_mhz", 1980, mhz) : tell(device, "memory_mhz", 2619, mhz);
}

int nvmlDeviceGetMaxClockInfo(Device device, int, unsigned* mhz) {
  return tell(device, "sm_max_mhz", 1980, mhz);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long* reasons) {
  return tell(device, "throttle_reasons", 0, reasons);
}

int nvmlDeviceGetPowerUsage(Device device, unsigned* milliwatts) {
  return tell(device, "power_mw", 650'000, milliwatts);
}

int nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long* millijoules) {
  return tell(device, "energy_mj", 1'000'000, millijoules);
}

int nvmlDeviceGetTotalEccErrors(Device device, int type, int, unsigned long long* errors) {
  return tell(device, type == kEccCorrected ? "ecc_corrected" : "ecc_uncorrected", 0, errors);
}

int nvmlDeviceGetPersistenceMode(Device device, int* enabled) {
  return tell(device, "persistence", 1, enabled);
}

int nvmlDeviceGetMigMode(Device device, unsigned* current, unsigned* pending) {
  *pending = 0;
  return tell(device, "mig", 0, current);
}

int nvmlDeviceGetP2PStatus(Device from, Device to, int, int* status) {
  return tell(from, "p2p_" + std::to_string(index_of(to)), kP2pOk, status);
}

int nvmlEventSetCreate(EventSet* set) {
  *set = reinterpret_cast<EventSet>(new Events);
  return kSuccess;
}

int nvmlEventSetFree(EventSet set) {
  delete reinterpret_cast<Events*>(set);
  return kSuccess;
}

int nvmlDeviceRegisterEvents(Device device, unsigned long long, EventSet set) {
  reinterpret_cast<Events*>(set)->device = device;
  return kSuccess;
}

int nvmlEventSetWait_v2(EventSet set, Event* event, unsigned) {
  auto& events = *reinterpret_cast<Events*>(set);
  const auto xids = values_of(std::to_string(index_of(events.device)) + ".xid");
  if (events.returned >= xids.size()) return kTimeout;
  *event = {.device = events.device,
            .type = kXidEvent,
            .data = *xids[events.returned++],
            .gpu_instance = 0,
            .compute_instance = 0};
  return kSuccess;
}
}
