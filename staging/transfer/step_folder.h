// A job's folder on a node, <store>/jobs/JOB: what LOCKSTEP_DATA names, and what its steps have staged so
// far.
//
//   data/NAME       a source's files, hard links to the read-only objects of the store
//   staged.json     what has been put there, so that the job's next step finds it done
//   lock            flock: held by the step that works here
//
// Threads: one thread and process at a time, by the lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/files.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// The name under which a source is found: its last name; of a pattern the name of its folder.
std::string entry_name(const std::string& source);

class StepFolder {
 public:
  /// Makes what is missing and waits for the lock. Throws Error naming the folder.
  StepFolder(const std::filesystem::path& store, std::uint32_t job);

  /// Throws Error where two sources, or a source and one that is there already, want the same name.
  void check_names(const std::vector<std::string>& sources) const;

  /// Those that no earlier step of this job has staged here.
  std::vector<std::string> missing(const std::vector<std::string>& sources) const;

  /// Links the local copy under the source's name and remembers it.
  void add(const PutResult& result);

  /// What this job has staged on this node, of these sources.
  std::vector<PutResult> staged(const std::vector<std::string>& sources) const;

 private:
  void link_file(const std::filesystem::path& from, const std::filesystem::path& to) const;
  void remember() const;

  std::filesystem::path folder_;
  UniqueFd lock_;
  std::map<std::string, PutResult> staged_;  // by source
};

}  // namespace lockstep::transfer
