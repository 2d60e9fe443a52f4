// The clock of a device, such as a GPU, that works through a queue while the host continues. The step timer marks the
// beginning and the end of phases in this queue, so that the record has the times of the device.
//
// Threads: the training thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace lockstep::profile {

class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  DeviceClock() = default;
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  /// The device's identity as NVML shows it ("GPU-…"); "" if it is not known.
  virtual std::string device_identity() noexcept { return ""; }

  /// A point in the queue, after the work that is queued now.
  using Mark = std::shared_ptr<void>;

  /// Null if the device has failed. The other functions take marks that are not null.
  virtual Mark mark() noexcept = 0;
  /// Whether the device has done the work before the mark.
  virtual bool reached(const Mark& mark) noexcept = 0;
  virtual void wait(const Mark& mark) noexcept = 0;
  /// Nanoseconds of the device between two marks that it has reached; 0 if it has failed.
  virtual std::uint64_t ns_between(const Mark& from, const Mark& to) noexcept = 0;
};

}  // namespace lockstep::profile
