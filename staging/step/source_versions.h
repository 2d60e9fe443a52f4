// Which of a step's sources a node must put: those that no earlier step of the job has staged there, and those that
// changed since. A source that can no longer be seen does not stop the step if every node has its copy.
//
// Threads: values.
#pragma once

#include <functional>
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
  };

  /// `staged`: what this job's folder has. `say` gets one line for each source that changed or cannot be seen.
  static SourceVersions of(const std::vector<std::string>& sources, const std::vector<PutResult>& staged,
                           Look look, const std::function<void(const std::string&)>& say);

  /// The sources that were staged here, and are not what was seen.
  std::vector<std::string> changed() const;
  /// The sources that this node must put.
  std::vector<std::string> missing() const;

 private:
  bool must_put(const std::optional<std::string>& staged, std::size_t source) const;

  std::vector<std::string> sources_;
  std::vector<std::optional<std::string>> staged_;  // versions; nullopt: not staged
  std::vector<std::string> seen_;                   // versions, "" for a source that cannot be seen
};

}  // namespace lockstep::transfer
