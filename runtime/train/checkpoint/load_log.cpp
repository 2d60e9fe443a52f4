#include "runtime/train/checkpoint/load_log.h"

#include <fcntl.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"

namespace lockstep::checkpoint {

LoadLog::LoadLog() : begin_ns_(monotonic_ns()) {
}

void LoadLog::write(std::int64_t steps) const noexcept {
  try {
    const auto folder = environment::get("LOCKSTEP_REPORT_DIR");
    const auto job = environment::get("SLURM_JOB_ID");
    if (!folder || !job) return;
    const auto path = std::filesystem::path(*folder) / fmt::format("restarts-{}.jsonl", *job);
    if (!std::filesystem::exists(path)) return;
    const UniqueFd file = open_file(path, O_WRONLY | O_APPEND);
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    const nlohmann::ordered_json line = {
        {"loaded", steps}, {"at", now.count()}, {"seconds", seconds_between(begin_ns_, monotonic_ns())}};
    write_all(file.get(), line.dump() + "\n", path);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: the report will lack a load: {}\n", error.what());
  }
}

}  // namespace lockstep::checkpoint
