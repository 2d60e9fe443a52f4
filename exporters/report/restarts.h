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
  double begin_unix = 0;  ///< of the new start
  // Not known if lockstep-run was lost too.
  std::optional<double> stop_seconds{};   ///< from the first sign of the failure to the end of the ranks
  std::optional<double> start_seconds{};  ///< from there to the new start
  // Known if the program has a lockstep::Checkpointer.
  std::optional<double> launch_seconds{};    ///< from there until the program began to load a checkpoint
  std::optional<double> load_seconds{};      ///< to load it
  std::optional<std::int64_t> loaded{};      ///< the steps that were done in this checkpoint
  std::optional<std::int64_t> steps_lost{};  ///< done before the failure, and not in the checkpoint
  std::vector<std::string> without{};        ///< nodes that the new start does not use
};

struct Restarts {
  double begin_unix = 0;  ///< of the first start
  std::vector<Restart> list{};

  double seconds() const;           ///< in which no rank ran, where they are known
  std::int64_t steps_lost() const;  ///< of all restarts, where they are known
};

/// The name of the file in the folder of the report.
std::string restarts_name(std::uint64_t job);

/// Texts are safe for a terminal. Throws Error naming the file and the line if a line is damaged.
Restarts read_restarts(const std::filesystem::path& path);

/// What the last start tells of the whole job.
struct LastStart {
  double end_unix = 0;
  std::optional<double> goodput{};  ///< not known without phases of computing
  double step_seconds = 0;
};

/// The share of the time since the first start that trained, as if all starts had the goodput of the last one: without the
/// time in which no rank ran, and without steps that were lost. The last start's goodput without restarts, 0 where it is not known.
double job_goodput(const Restarts& restarts, const LastStart& last);

/// A line for all restarts, and one for each of the last ten. None without restarts. No share without a goodput.
std::vector<std::string> restart_lines(const Restarts& restarts, const LastStart& last);

/// A list of objects with the names of Restart's members; null where it is not known.
nlohmann::json restarts_json(const Restarts& restarts);

}  // namespace lockstep::report
