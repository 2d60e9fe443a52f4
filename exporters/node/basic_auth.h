// Checks names and passwords against bcrypt hashes.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <map>
#include <string>

namespace lockstep::exporter {

enum class Verdict { accepted, refused, too_many };

class BasicAuth {
 public:
  using Clock = std::chrono::steady_clock;

  explicit BasicAuth(std::map<std::string, std::string> users) : users_(std::move(users)) {}

  bool required() const { return !users_.empty(); }

  /// A bcrypt hash is slow by design, so a password that was right once is remembered. Of other passwords at most one a
  /// second is tried for each client, and four for all clients; further ones get too_many. An unknown name takes as
  /// long as a wrong password. Call it only if required().
  Verdict check(const std::string& name, const std::string& password, const std::string& client,
                Clock::time_point now);

 private:
  std::map<std::string, std::string> users_;
  std::map<std::string, std::string> accepted_;        // password by name
  std::map<std::string, Clock::time_point> next_try_;  // by client
};

}  // namespace lockstep::exporter
