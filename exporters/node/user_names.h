// The names of user ids, as metrics show them. A lookup may ask a directory service, so results are kept.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <map>
#include <string>

namespace lockstep::exporter {

class UserNames {
 public:
  using Clock = std::chrono::steady_clock;

  /// The name of a user id given in digits; "" if it has none. Asks again after ten minutes.
  const std::string& name_of(const std::string& uid, Clock::time_point now);

 private:
  struct Known {
    std::string name;
    Clock::time_point asked;
  };
  std::map<std::string, Known> known_;
};

}  // namespace lockstep::exporter
