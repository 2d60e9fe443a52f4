// The restarts of a job, from the lines that lockstep-run writes into the folder of the report.
//
// Threads: values; functions are safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::report {

struct Restart {
  std::string cause;
  double begin_unix = 0;                 ///< of the new start
  std::optional<double> stop_seconds{};  ///< from the first sign of the failure to the end of the ranks
  std::optional<double>
      start_seconds{};  ///< from there to the new start; neither is known if lockstep-run was lost too
  std::vector<std::string> without{};  ///< nodes that the new start does not use
};

struct Restarts {
  double begin_unix = 0;  ///< of the first start
  std::vector<Restart> list{};

  double seconds() const;  ///< of all restarts, where they are known
};

/// The name of the file in the folder of the report.
std::string restarts_name(std::uint64_t job);

/// Texts are safe for a terminal. Throws Error naming the file and the line if a line is damaged.
Restarts read_restarts(const std::filesystem::path& path);

/// Share of `end_unix` - begin in which ranks ran; 1 without restarts.
double running_share(const Restarts& restarts, double end_unix);

/// A line for all restarts, and one for each of the last ten. None without restarts. `goodput`: of the last start.
std::vector<std::string> restart_lines(const Restarts& restarts, double end_unix,
                                       std::optional<double> goodput);

/// A list of {"cause":…,"begin_unix":…,"stop_seconds":…,"start_seconds":…,"without":[…]}; null where it is not known.
nlohmann::json restarts_json(const Restarts& restarts);

}  // namespace lockstep::report
