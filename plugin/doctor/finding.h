// What lockstep-doctor has found on a node, and how it is printed.
//
// Threads: values.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lockstep::doctor {

enum class Level {
  ok,
  warning,  ///< something is missing or slower than it could be
  error     ///< training would fail, hang or be much slower
};

struct Finding {
  std::string id;  ///< of the check; several findings may have the same
  Level level;
  std::string what;
  std::string why;     ///< why it matters; "" at Level::ok
  std::string remedy;  ///< the command or the setting that mends it; "" at Level::ok
};

/// The findings of one node.
class Report {
 public:
  void ok(std::string id, std::string what);
  void warning(std::string id, std::string what, std::string why, std::string remedy);
  void error(std::string id, std::string what, std::string why, std::string remedy);

  const std::vector<Finding>& findings() const { return findings_; }
  /// True if a finding is an error.
  bool failed() const;

  /// Of libraries that an earlier check found: "LibTorch" -> "1.13".
  std::map<std::string, std::string> versions;

 private:
  std::vector<Finding> findings_;
};

/// {"node": NAME, "findings": [{"id", "level", "what", "why", "do"}]}.
nlohmann::json to_json(const std::string& node, const Report& report);

/// Lines for people: errors, then warnings, then the number of checks that passed or, with `verbose`, a line for each
/// of them.
std::string to_text(const std::string& node, const Report& report, bool verbose);

}  // namespace lockstep::doctor
