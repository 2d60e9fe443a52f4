// Asks slow services, such as a directory of users or Slurm's controller, on a thread of its own, and keeps their last good
// answers. So a service that hangs never delays a scrape.
//
// Threads: safe from any.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace lockstep::exporter {

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

}  // namespace lockstep::exporter
