// A job's folder on a node, <store>/jobs/JOB: what LOCKSTEP_DATA names, and what its steps have staged so
// far.
//
//   data/NAME       a source's files: hard links to the read-only objects of the store, or symbolic links to
//   the
//                   shared store's; before that, and where staging failed, symbolic links to the source
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

#include "common/file_system.h"
#include "common/files.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// The name under which a source is found: its last name; of a pattern the name of its folder.
std::string entry_name(const std::string& source);

/// Throws Error where several sources are single shards of packs.
void check_shards(const std::vector<std::string>& sources);

/// What a source's name stands for, as its place in a job's folder leads to it.
struct SourceLinks {
  std::string source;              ///< as the user wrote it
  std::filesystem::path folder;    ///< without symbolic links
  std::vector<std::string> files;  ///< in it; none where the whole folder is meant
  bool one_file = false;           ///< and they get names of their own, not those of a folder

  /// Asks the source, which may take for ever: not with the lock of a job's folder. Throws Error where
  /// nothing is there.
  static SourceLinks of(const std::string& source);
};

class StepFolder {
 public:
  /// Makes what is missing and waits for the lock. Throws Error naming the folder. `system` outlives it.
  StepFolder(const std::filesystem::path& store, std::uint32_t job, FileSystem& system = FileSystem::real());

  /// Throws Error where two sources, or a source and one that is there already, want the same name.
  void check_names(const std::vector<std::string>& sources) const;

  /// Those that no earlier step of this job has staged here.
  std::vector<std::string> missing(const std::vector<std::string>& sources) const;

  /// Forgets what was staged for a source, since it is gone; its name stays until it is staged again.
  void forget(const std::string& source);

  /// Links the local copies under their sources' names and remembers them, all at once.
  void add(const std::vector<PutResult>& results);

  /// Names the source itself, where nothing has that name yet or, with `replace`, in the place of what has: a
  /// symbolic link to its folder, or to each of its files where it is not a whole folder.
  void point_at(const SourceLinks& links, bool replace);

  /// Replaces the link to one file of a source, if it has one, by the local copy.
  void replace_file(const std::string& source, const std::string& name, const std::filesystem::path& copy);

  /// Names each of a folder's files by a link of its own, so that they can be replaced one by one.
  void open_up(const SourceLinks& links, const std::vector<std::string>& names);

  /// What this job has staged on this node, of these sources.
  std::vector<PutResult> staged(const std::vector<std::string>& sources) const;

 private:
  std::filesystem::path entry(const std::string& source) const {
    return folder_ / "data" / entry_name(source);
  }
  void link_copy(const PutResult& result) const;
  void place(const std::filesystem::path& made, const std::filesystem::path& name) const;
  void link_file(const std::filesystem::path& from, const std::filesystem::path& to, bool symbolic) const;
  void make_folders(const std::filesystem::path& top, const std::filesystem::path& below) const;
  void name_each(const std::vector<std::string>& names, const std::filesystem::path& source,
                 const std::filesystem::path& name) const;
  std::filesystem::path empty_part() const;
  bool lock();
  void remember() const;

  FileSystem& system_;
  std::filesystem::path folder_;
  UniqueFd lock_;
  std::map<std::string, PutResult> staged_;  // by source
};

}  // namespace lockstep::transfer
