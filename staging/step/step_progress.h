// Reports a long copy while it runs: every ten seconds to the user, and every second in the record that the exporter reads
// (step_report.h).
//
// Threads: safe from any.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "staging/rendezvous/rendezvous_messages.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {

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
