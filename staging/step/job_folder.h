// The folder of a job on a node, <store>/jobs/JOB. LOCKSTEP_DATA leads to data/ in it:
//
//   data/NAME       a source's files: hard links to the read-only objects of the store, or symbolic links to
//                   those of the shared store; before staging, and if it failed, symbolic links to the source
//   staged.json     the sources that are staged, so that the job's next step finds them
//   old/N           folders that were replaced under their names: a task may stand in them or read their entries
//   lock            flock: held by the step that works here
//
// A job that was queued again has a folder of its own, <store>/jobs/JOB-RESTART: what an earlier run left is not used.
//
// No folder in data/ is ever emptied: while tasks run, its files are replaced one by one, each atomically, and a folder
// that must be replaced as a whole moves to old/ with its files.
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
#include "common/leaf/source_name.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// Throws Error if several sources are single shards of packs.
void check_shards(const std::vector<std::string>& sources);

/// The links by which a job's folder leads to a source.
struct SourceLinks {
  std::string source;              ///< as the user wrote it
  std::filesystem::path folder;    ///< without symbolic links
  std::vector<std::string> files;  ///< in it; empty for the whole folder
  bool one_file = false;           ///< the files get names in data/ themselves, not in a folder there

  /// Looks at the source, which may take long: call it without the lock of a job's folder. Throws Error if nothing is
  /// there.
  static SourceLinks of(const std::string& source);
};

class JobFolder {
 public:
  /// Creates missing folders and waits for the lock. `system` must outlive this object. Throws Error.
  JobFolder(const std::filesystem::path& store, std::uint32_t job, FileSystem& system = FileSystem::real(),
            std::uint32_t restart = 0);

  /// Throws Error if two sources have the same name, or a source has the name of an earlier one.
  void check_names(const std::vector<std::string>& sources) const;

  /// The sources that no earlier step of this job has staged here.
  std::vector<std::string> missing(const std::vector<std::string>& sources) const;

  /// Whether this version of the source is staged here.
  bool has(const PutResult& result) const;

  /// Forgets a source that changed, or whose copy is gone. Its name stays until it is staged again.
  void forget(const std::string& source) {
    if (staged_.erase(source) > 0) remember();
  }

  /// Links the local copies under their sources' names and records all of them at once.
  void add(const std::vector<PutResult>& results);

  /// Makes the name lead to the source: a symbolic link to its folder, or to each of its files if it is not a
  /// whole folder.
  void point_at(const SourceLinks& links);

  /// As point_at(), for tasks that run: if the name is a folder with a link for each file, it stays, and its files
  /// become links to the source again. So no link keeps the files of a discarded copy.
  void return_to(const SourceLinks& links);

  /// Replaces the symbolic link to one file of a source, if there is one, by a link to the local copy.
  void replace_file(const std::string& source, const std::string& name, const std::filesystem::path& copy);

  /// Replaces the link to a folder by a folder with one link for each file, so that the files can be replaced
  /// one by one.
  void expand_folder_link(const Source& source, const std::vector<std::string>& names);

  /// The results of these sources, if this job has staged them on this node.
  std::vector<PutResult> staged(const std::vector<std::string>& sources) const;

 private:
  std::filesystem::path entry(const std::string& source) const {
    return folder_ / "data" / entry_name(source);
  }
  void link_copy(const PutResult& result) const;
  bool fill_in(const std::filesystem::path& files, const std::filesystem::path& name) const;
  void retire(const std::filesystem::path& folder) const;
  bool leads_to(const SourceLinks& links, const std::filesystem::path& name) const;
  void place(const std::filesystem::path& made, const std::filesystem::path& name) const;
  void link_file(const std::filesystem::path& from, const std::filesystem::path& to, bool symbolic) const;
  void make_folders(const std::filesystem::path& top, const std::filesystem::path& below) const;
  void link_each_file(const std::vector<std::string>& names, const std::filesystem::path& source,
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
