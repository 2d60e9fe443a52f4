// The summary of a profile, which LOCKSTEP_PROFILE leaves as profile.json beside the records
// (runtime/profile/profile_summary.h).
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::report {

struct Profile {
  struct Operator {
    std::string name;
    double calls = 0;
    double total_ms = 0;  ///< with the operators that it called
    double self_ms = 0;
  };
  struct Module {
    std::string name;
    double forward_ms = 0;
    double backward_ms = 0;
    double forward_bytes = 0;  ///< of the results of its operators
    double backward_bytes = 0;
  };
  struct Fault {
    std::string name;  ///< of the operator
    double calls = 0;
    double bytes = 0;
  };

  struct Device {
    double computing_ms = 0;  ///< kernels but those of NCCL
    double tensor_cores_ms = 0;
    double communicating_ms = 0;
    double copying_ms = 0;
    double busy_ms = 0;
    std::vector<Operator> kernels{};  ///< and copies
  };

  std::int64_t written_unix_ns = 0;  ///< the file may be that of an earlier run
  int rank = 0;
  std::string node;
  double steps = 0;
  double step_ms = 0;  ///< this and all the following: per step
  std::vector<Operator> operators{};
  std::vector<Module> modules{};
  Device device{};  ///< no kernels: none were recorded
  Fault small{};    ///< operators below 10 µs; named after the one that is called most
  double small_ms = 0;
  std::vector<Fault> host_copies{};
  std::vector<Fault> device_waits{};
  std::vector<Fault> tuned_again{};  ///< convolutions, by cuDNN's autotuner
  std::vector<Fault> half_sums{};
  nlohmann::json json{};  ///< as in the file: totals
};

/// Throws Error naming the file if it is damaged. Texts are safe for a terminal.
Profile read_profile(const std::filesystem::path& file);

/// Tables of the operators and of the modules, each with a title line.
std::string profile_text(const Profile& profile);

}  // namespace lockstep::report
