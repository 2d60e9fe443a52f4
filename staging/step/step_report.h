// What a person, the exporter and the job's next step read about what staging did on a node.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// "staged manpages: 12.3 MiB in 0.41 s (miss)"
std::string summary(const std::vector<PutResult>& results);

/// What was staged as text, exact also where names are not UTF-8.
std::string staged_to_text(const std::vector<PutResult>& results);

/// The reverse. Throws Error where the text is something else.
std::vector<PutResult> staged_from_text(const std::string& text);

/// What stands in staging.json beside the ranks' records, for the exporter's group to read:
/// {"version":1, "job":…, "step":…, "node":…, "state":"staging"|"done"|"source"|"failed", "seconds":…,
///  "sources":[{"source":…, "path":…, "object":…, "bytes":…, "done":…, "from_source":…, "from_peers":…,
///  "hit":…, "shared":…, "seconds":…}]}
/// where "bytes" are those the source has, and "done" those of them that are here. It is written anew about
/// every second while staging goes on, each time whole, by rename.
struct StagingRecord {
  std::uint32_t job = 0;
  std::string step;
  std::string node;
  std::string state = "done";
  std::vector<PutResult> results;
  std::map<std::string, std::uint64_t> done;  ///< by source, of those that are not complete
};

void write_staging_record(const std::filesystem::path& folder, const StagingRecord& record);

/// "43 % of 12.3 GiB, 512 MiB/s, 14 s left"
std::string progress_line(const PutProgress& progress, double seconds);

}  // namespace lockstep::transfer
