#include "common/nvml.h"

#include <dlfcn.h>

#include <array>

#include "common/error.h"

namespace lockstep::nvml {

// With the type of the declared function, so that the compiler checks the arguments. An older driver may not have it.
#define NVML_CALL(function, ...) call<decltype(::function)>(#function __VA_OPT__(, ) __VA_ARGS__)
#define NVML_ASK(field, function, ...) ask<decltype(::function)>(#function, field, __VA_ARGS__)

template <typename Function, typename... Arguments>
int Library::call(const char* name, Arguments... arguments) const {
  auto* const function = reinterpret_cast<Function*>(::dlsym(handle_, name));
  return function == nullptr ? kNotSupported : function(arguments...);
}

template <typename Function, typename Value, typename... Arguments>
void Library::ask(const char* name, std::optional<Value>& field, Arguments... arguments) const {
  Value value{};
  if (call<Function>(name, arguments..., &value) == kSuccess) field = value;
}

std::unique_ptr<Library> Library::open(const char* name) {
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return nullptr;
  // Never unloaded: the library has threads and handlers of its own.
  std::unique_ptr<Library> library(new Library(handle));
  const int result = library->NVML_CALL(nvmlInit_v2);
  if (result == kDriverNotLoaded) return nullptr;
  if (result != kSuccess) {
    auto* const text = reinterpret_cast<decltype(::nvmlErrorString)*>(::dlsym(handle, "nvmlErrorString"));
    fail("{} does not start: {}", name, text == nullptr ? "unknown error" : text(result));
  }
  unsigned count = 0;
  library->NVML_CALL(nvmlDeviceGetCount_v2, &count);
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    // A GPU that fell off the bus, or of another job, has no handle.
    if (library->NVML_CALL(nvmlDeviceGetHandleByIndex_v2, index, &device) == kSuccess) {
      library->devices_.push_back(device);
    }
  }
  return library;
}

Library::~Library() {
  if (xids_ != nullptr) NVML_CALL(nvmlEventSetFree, xids_);
  NVML_CALL(nvmlShutdown);
}

namespace {

using Text = std::array<char, 96>;  // at least as long as NVML's longest

std::string to_string(int result, const Text& text) {
  return result == kSuccess ? text.data() : "";
}

}  // namespace

std::string Library::driver_version() const {
  Text text{};
  return to_string(NVML_CALL(nvmlSystemGetDriverVersion, text.data(), unsigned{text.size()}), text);
}

std::string Library::cuda_version() const {
  int version = 0;
  NVML_CALL(nvmlSystemGetCudaDriverVersion_v2, &version);
  return version == 0 ? "" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string Library::uuid(std::size_t gpu) const {
  Text text{};
  return to_string(NVML_CALL(nvmlDeviceGetUUID, devices_.at(gpu), text.data(), unsigned{text.size()}), text);
}

std::string Library::name(std::size_t gpu) const {
  Text text{};
  return to_string(NVML_CALL(nvmlDeviceGetName, devices_.at(gpu), text.data(), unsigned{text.size()}), text);
}

State Library::state(std::size_t gpu) const {
  const Device device = devices_.at(gpu);
  State state;
  unsigned mig = 0;
  unsigned pending = 0;
  if (NVML_CALL(nvmlDeviceGetMigMode, device, &mig, &pending) == kSuccess) state.mig = mig != 0;
  int persistence = 0;
  if (NVML_CALL(nvmlDeviceGetPersistenceMode, device, &persistence) == kSuccess) {
    state.persistence = persistence != 0;
  }
  if (mig == 0) NVML_ASK(state.memory, nvmlDeviceGetMemoryInfo, device);
  std::optional<Utilization> busy;
  NVML_ASK(busy, nvmlDeviceGetUtilizationRates, device);
  if (busy) state.busy_percent = busy->gpu;
  NVML_ASK(state.sm_mhz, nvmlDeviceGetClockInfo, device, int{kClockSm});
  NVML_ASK(state.sm_max_mhz, nvmlDeviceGetMaxClockInfo, device, int{kClockSm});
  NVML_ASK(state.memory_mhz, nvmlDeviceGetClockInfo, device, int{kClockMemory});
  NVML_ASK(state.throttle_reasons, nvmlDeviceGetCurrentClocksThrottleReasons, device);
  NVML_ASK(state.power_mw, nvmlDeviceGetPowerUsage, device);
  NVML_ASK(state.energy_mj, nvmlDeviceGetTotalEnergyConsumption, device);
  NVML_ASK(state.ecc_corrected, nvmlDeviceGetTotalEccErrors, device, int{kEccCorrected},
           int{kEccSinceDriverLoad});
  NVML_ASK(state.ecc_uncorrected, nvmlDeviceGetTotalEccErrors, device, int{kEccUncorrected},
           int{kEccSinceDriverLoad});
  return state;
}

bool Library::reads(std::size_t gpu, std::size_t other) const {
  int status = kP2pOk;
  NVML_CALL(nvmlDeviceGetP2PStatus, devices_.at(gpu), devices_.at(other), int{kP2pRead}, &status);
  return status == kP2pOk;
}

void Library::watch_xids(std::size_t gpu) {
  if (xids_ == nullptr && NVML_CALL(nvmlEventSetCreate, &xids_) != kSuccess) xids_ = nullptr;
  if (xids_ != nullptr) NVML_CALL(nvmlDeviceRegisterEvents, devices_.at(gpu), kXidEvent + 0, xids_);
}

std::optional<unsigned long long> Library::next_xid() {
  Event event{};
  while (xids_ != nullptr && NVML_CALL(nvmlEventSetWait_v2, xids_, &event, 0U) == kSuccess) {
    if (event.type == kXidEvent) return event.data;
  }
  return std::nullopt;
}

}  // namespace lockstep::nvml
