// Reports a long copy while it runs: a line in the job's output every ten seconds, and every second the
// record that the exporter reads (step_report.h).
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "staging/rendezvous/rendezvous_messages.h"
#include "staging/transfer/put_options.h"

namespace lockstep::transfer {

class StepProgress {
 public:
  /// `folder` holds the records; "" for none.
  StepProgress(std::string folder, const Hello& hello) : folder_(std::move(folder)), hello_(hello) {}

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
  std::mutex mutex_;
  bool done_ = false;
  std::string source_;
  std::uint64_t begun_ns_ = 0;
  std::uint64_t said_ns_ = 0;
  std::uint64_t written_ns_ = 0;
};

}  // namespace lockstep::transfer
