// The phases of a training step. They add up to the step: time that belongs to no other phase is `other`.
//
// Threads: values, no shared state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep::record {

enum class Phase : std::uint32_t {
  data_wait,       ///< the training loop waited for the loader
  host_to_device,  ///< copying the batch to the device
  forward,
  backward,      ///< without communication that did not overlap with it
  comm_exposed,  ///< communication that the step had to wait for
  optimizer,
  checkpoint,
  other,  ///< the rest of the step
};

inline constexpr std::size_t kPhases = 8;

/// The names in the order of Phase, as metrics, tables and JSON show them.
inline constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "data_wait", "host_to_device", "forward", "backward", "comm_exposed", "optimizer", "checkpoint", "other",
};

constexpr std::size_t index(Phase phase) {
  return static_cast<std::size_t>(phase);
}
constexpr std::string_view name(Phase phase) {
  return kPhaseNames[index(phase)];
}

}  // namespace lockstep::record
