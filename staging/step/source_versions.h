// Which of a step's sources a node must put: those that no earlier step of the job has staged there, and those that
// changed since. A source that can no longer be seen does not stop the step if every node has its copy.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "staging/transfer/put_options.h"

namespace lockstep::transfer {

class SourceVersions {
 public:
  enum class Look {
    now,   ///< look at each staged source, which may take long: not with the lock of the job's folder
    done,  ///< they have been looked at, and those that changed are no longer in `staged`
    none,  ///< another node looks
  };

  /// `staged`: what this job's folder has. `say` gets one line for each source that changed or cannot be seen.
  static SourceVersions of(const std::vector<std::string>& sources, const std::vector<PutResult>& staged,
                           Look look, const std::function<void(const std::string&)>& say);

  /// The sources that were staged here, and are not what was seen.
  std::vector<std::string> changed() const;
  /// The sources that this node must put.
  std::vector<std::string> missing() const;

  /// For the step's other nodes.
  nlohmann::json to_json() const;
  /// The sources that some node must put, from to_json() of each. Takes over what the node that looked has seen. Throws
  /// Error if the nodes have different sources.
  std::vector<std::string> missing_on(const std::map<std::uint32_t, nlohmann::json>& nodes);

 private:
  bool must_put(const std::optional<std::string>& staged, std::size_t source) const;

  std::vector<std::string> sources_;
  std::vector<std::optional<std::string>> staged_;  // versions; nullopt: not staged
  std::vector<std::string>
      seen_;  // versions, "" for a source that cannot be seen; empty if no node has looked
};

}  // namespace lockstep::transfer
