// Slow services: a directory of users and Slurm's controller.
//
// Threads: safe from any.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace lockstep::exporter {

/// Asks a slow service on a thread of its own, and keeps its last good answers. So a service that hangs never delays a scrape.
class BackgroundAnswers {
 public:
  using Clock = std::chrono::steady_clock;
  /// Returns nullopt, or throws, if there is no answer now.
  using Ask = std::function<std::optional<std::string>(const std::string& key)>;

  /// An answer is asked for again after `keep`.
  BackgroundAnswers(Ask ask, Clock::duration keep);
  /// Does not wait for a question that has no answer yet.
  ~BackgroundAnswers();
  BackgroundAnswers(const BackgroundAnswers&) = delete;
  BackgroundAnswers& operator=(const BackgroundAnswers&) = delete;

  /// The last good answer; nullopt if there has been none. For a key that is new it waits a moment, unless the service did
  /// not answer in such a moment before.
  std::optional<std::string> get(const std::string& key, Clock::time_point now);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
};

/// The name of a user id in digits; nullopt if it has none, or if the directory does not answer.
std::optional<std::string> name_of_user(const std::string& uid);

/// The exporters of all nodes that `sinfo` lists, except those that are powered down or do not exist yet, at `port`, for
/// Prometheus' service discovery, in the format of file_sd and http_sd: [{"targets":["n1:9753",...]}]. Waits for sinfo. Throws
/// Error if it cannot be run, fails, or takes longer than 10 s.
std::string targets_of_slurm(int port);

/// The same from what `sinfo --noheader --Node --all --format="%N %T"` prints.
std::string targets_of(const std::string& sinfo, int port);

}  // namespace lockstep::exporter
