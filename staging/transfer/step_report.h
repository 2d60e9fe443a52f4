// What a person, the exporter and the job's next step read about what staging did on a node.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// "staged manpages: 12.3 MiB in 0.41 s (miss)"
std::string summary(const std::vector<PutResult>& results);

nlohmann::json to_json(const std::vector<PutResult>& results);

/// The reverse. Throws Error where the text is something else.
std::vector<PutResult> results_from_json(const std::string& text);

/// Writes staging.json beside the ranks' records, for the exporter's group to read.
void write_staging_record(const std::filesystem::path& folder, std::uint32_t job, const std::string& step,
                          const std::string& node, const std::vector<PutResult>& results);

}  // namespace lockstep::transfer
