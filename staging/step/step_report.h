// Reports what staging did on a node: to the user, to the exporter, and to the job's next step.
//
// Threads: safe from any.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
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

/// Reports a long copy while it runs: every ten seconds to the user, and every second in the record. Safe from any thread.
class StepProgress {
 public:
  /// Tells the user how far a source is.
  using Tell = std::function<void(const NodeProgress& progress)>;

  /// `folder` holds the records; "" for none.
  StepProgress(std::string folder, const Hello& hello, Tell tell = {},
               std::chrono::nanoseconds tell_every = std::chrono::seconds(10))
      : folder_(std::move(folder)), hello_(hello), tell_(std::move(tell)), tell_every_(tell_every) {}

  void update(const std::string& source, const PutProgress& now);
  /// Writes the final record: update() does nothing from now on.
  void done(const std::string& state, const std::vector<PutResult>& results);
  /// The same with the state "failed", unless the final record was written.
  void failed();

 private:
  void write(const std::string& state, const std::vector<PutResult>& results,
             std::optional<std::uint64_t> bytes_done = std::nullopt);

  std::string folder_;
  const Hello& hello_;
  Tell tell_;
  std::chrono::nanoseconds tell_every_;
  std::mutex mutex_;
  bool done_ = false;
  std::map<std::string, std::uint64_t> begun_ns_;  // by source; several may be copied at once
  std::uint64_t told_ns_ = 0;
  std::uint64_t written_ns_ = 0;
};

}  // namespace lockstep::transfer
