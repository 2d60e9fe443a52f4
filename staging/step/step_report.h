// Reports what staging did on a node: to the user, to the exporter, and to the job's next step.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "staging/rendezvous/rendezvous_messages.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// Prints one line to the job's output, in one write.
void print_for_job(const std::string& text);

/// "staged manpages: 12.3 MiB in 0.41 s (miss)"
std::string summary(const std::vector<PutResult>& results);

/// The results as text. Names that are not UTF-8 are preserved.
std::string staged_to_text(const std::vector<PutResult>& results);

/// The reverse. Throws Error if the text is damaged.
std::vector<PutResult> staged_from_text(const std::string& text);

/// The content of staging.json, which lies beside the ranks' records and is readable for the exporter's
/// group:
/// {"version":1, "job":…, "step":…, "node":…, "state":"staging"|"done"|"source"|"failed", "seconds":…,
///  "sources":[{"source":…, "path":…, "object":…, "bytes":…, "done":…, "from_source":…, "from_peers":…,
///  "hit":…, "shared":…, "seconds":…}]}
/// "bytes" is the size of the source, "done" the part of it that is here: if `done` is set, that part of each result. During
/// staging the file is replaced atomically about once a second.
void write_staging_record(const std::filesystem::path& folder, const Hello& hello, const std::string& state,
                          const std::vector<PutResult>& results,
                          std::optional<std::uint64_t> done = std::nullopt);

}  // namespace lockstep::transfer
