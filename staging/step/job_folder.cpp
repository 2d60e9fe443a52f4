#include "staging/step/job_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/pending_calls.h"
#include "staging/cache/layout.h"
#include "staging/pack/format.h"
#include "staging/pack/index.h"
#include "staging/step/step_report.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStaged = "staged.json";

constexpr mode_t kOwn = 0700;

std::string folder_name(std::uint32_t job, std::uint32_t restart) {
  return restart == 0 ? fmt::format("{}", job) : fmt::format("{}-{}", job, restart);
}

/// The files and links below a folder, by their paths in it. Does not follow links.
std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& file : fs::recursive_directory_iterator(folder)) {
    if (file.is_symlink() || !file.is_directory()) files.push_back(file.path().lexically_relative(folder));
  }
  return files;
}

bool is_link(const struct stat& status) {
  return S_ISLNK(status.st_mode);
}

}  // namespace

void check_shards(const std::vector<std::string>& sources) {
  std::size_t alone = 0;
  for (const std::string& source : sources) {
    const PendingCall call(source);
    const fs::path index = fs::path(source).parent_path() / pack::kIndexName;
    if (fs::is_regular_file(source) && fs::exists(index)) ++alone;
  }
  if (alone > 1)
    fail("{} sources are single shards; name several shards of a pack by one pattern, as \"{{a,b}}.tar\"",
         alone);
}

SourceLinks SourceLinks::of(const std::string& source) {
  const Source found = retry_source(kSourcePause, [&] { return resolve_source(source); });
  const PendingCall call(source);
  SourceLinks links{source, found.folder, found.shards, found.one_file && !is_pattern(source)};
  if (links.files.empty()) return links;
  if (fs::exists(found.index_file())) links.files.emplace_back(pack::kIndexName);
  if (links.one_file && links.files.size() == 1) links.files = pack::contents_of(found.paths.front()).files;
  return links;
}

JobFolder::JobFolder(const fs::path& store, std::uint32_t job, FileSystem& system, std::uint32_t restart)
    : system_(system), folder_(store / "jobs" / folder_name(job, restart)) {
  (void)system_.make_folder(store / "jobs", 0700);
  while (!lock()) {
  }
  system_.make_folder(folder_ / "data", kOwn);
  if (!fs::exists(folder_ / kStaged)) return;
  for (PutResult& result : staged_from_text(read_text_file(folder_ / kStaged))) {
    const std::string source = result.source;
    staged_.emplace(source, std::move(result));
  }
}

// Returns false if the folder was renamed for removal during the wait for the lock.
bool JobFolder::lock() {
  const fs::path file = folder_ / "lock";
  (void)system_.make_folder(folder_, 0700);
  try {
    lock_ = system_.open(file, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  } catch (const Error&) {
    if (system_.status(folder_)) throw;
    return false;
  }
  // Other steps hold the lock only for moments, unless they are stuck.
  const PendingCall call(file);
  system_.lock(lock_.get(), FileSystem::LockKind::exclusive, true, file);
  struct stat held {};
  if (::fstat(lock_.get(), &held) != 0) fail_errno("cannot stat {}", file.string());
  const std::optional<struct stat> named = system_.status(file);
  return named && named->st_dev == held.st_dev && named->st_ino == held.st_ino;
}

void JobFolder::check_names(const std::vector<std::string>& sources) const {
  std::map<std::string, std::string> taken;
  for (const auto& [source, result] : staged_) taken.emplace(entry_name(source), source);
  for (const std::string& source : sources) {
    const auto [other, fresh] = taken.emplace(entry_name(source), source);
    if (!fresh && other->second != source) {
      fail("{} and {} would both be $LOCKSTEP_DATA/{}; rename one", other->second, source,
           entry_name(source));
    }
  }
}

std::vector<std::string> JobFolder::missing(const std::vector<std::string>& sources) const {
  std::vector<std::string> left;
  for (const std::string& source : sources) {
    if (!staged_.contains(source)) left.push_back(source);
  }
  return left;
}

bool JobFolder::has(const PutResult& result) const {
  const auto staged = staged_.find(result.source);
  return staged != staged_.end() && staged->second.version == result.version;
}

// The temporary name for making an entry.
fs::path JobFolder::empty_part() const {
  fs::path part = folder_ / ".part";
  system_.remove_all(part);
  return part;
}

// Moves a folder out of the way with all its files, because a task may read them there. It goes with the job's folder.
void JobFolder::retire(const fs::path& folder) const {
  const fs::path old = folder_ / "old";
  system_.make_folder(old, kOwn);
  system_.rename(folder, old / std::to_string(system_.list(old).size()));
}

// Replaces the link or folder of this name, atomically if the file system can, so that readers always find it.
void JobFolder::place(const fs::path& made, const fs::path& name) const {
  const std::optional<struct stat> before = system_.status(name);
  const std::optional<struct stat> after = system_.status(made);
  const bool replaces_folder = before && S_ISDIR(before->st_mode);
  // An exchange keeps the entry's place in its folder. A rename may give it a new one, which a task that lists the folder
  // has passed already.
  if (before && system_.exchange(made, name)) {
    if (replaces_folder) retire(made);
  } else {
    if (replaces_folder) {
      retire(name);  // for a moment the name is missing
    } else if (before && S_ISDIR(after->st_mode)) {
      system_.remove_all(name);
    }
    system_.rename(made, name);
  }
  system_.remove_all(made);  // the previous link; and rename() does nothing if both are the same file
}

void JobFolder::link_file(const fs::path& from, const fs::path& to, bool symbolic) const {
  const fs::path part = empty_part();
  if (symbolic) {
    system_.symlink(from.string(), part);
  } else {
    system_.link(from, part);
  }
  place(part, to);
}

// Makes the folders `below` in `top`, which exists.
void JobFolder::make_folders(const fs::path& top, const fs::path& below) const {
  fs::path folder = top;
  for (const fs::path& name : below) system_.make_folder(folder /= name, kOwn);
}

// Makes a folder of symbolic links to these files of a source.
void JobFolder::link_each_file(const std::vector<std::string>& names, const fs::path& source,
                               const fs::path& name) const {
  const fs::path part = empty_part();
  system_.make_folder(part, kOwn);
  for (const std::string& file : names) {
    make_folders(part, fs::path(file).parent_path());
    system_.symlink((source / file).string(), part / file);
  }
  place(part, name);
}

// Links the copy's files in an existing folder of the same files, each in the place of its link to the source. Returns
// false, with nothing changed, if the folder has other files.
bool JobFolder::fill_in(const fs::path& files, const fs::path& name) const {
  const std::optional<struct stat> folder = system_.status(name);
  if (!folder || !S_ISDIR(folder->st_mode)) return false;
  for (const fs::path& file : files_below(name)) {
    const std::optional<struct stat> now = system_.status(name / file);
    const std::optional<struct stat> copy = system_.status(files / file);
    if (!now || !copy || (!is_link(*now) && now->st_ino != copy->st_ino)) return false;
  }
  for (const fs::path& file : files_below(files)) {
    const std::optional<struct stat> now = system_.status(name / file);
    if (now && !is_link(*now)) continue;
    make_folders(name, file.parent_path());
    link_file(files / file, name / file, false);
  }
  return true;
}

void JobFolder::link_copy(const PutResult& result) const {
  const fs::path name = entry(result.source);
  const bool one_file = !fs::is_directory(result.path);
  const fs::path files = one_file ? result.path.parent_path() : result.path;
  if (one_file && !is_pattern(result.source)) {
    // A single file needs the files beside it: a shard its index, a .bin its .idx.
    for (const fs::directory_entry& file : fs::directory_iterator(files)) {
      link_file(file.path(), name.parent_path() / file.path().filename(), result.shared);
    }
  } else if (result.shared) {
    link_file(files, name, true);
  } else if (!fill_in(files, name)) {
    const fs::path part = empty_part();
    system_.make_folder(part, kOwn);
    for (fs::recursive_directory_iterator file(files), end; file != end; ++file) {
      const fs::path to = part / file->path().lexically_relative(files);
      if (file->is_directory()) {
        system_.make_folder(to, kOwn);
      } else {
        system_.link(file->path(), to);
      }
    }
    place(part, name);
  }
}

void JobFolder::add(const std::vector<PutResult>& results) {
  for (const PutResult& result : results) {
    link_copy(result);
    staged_.insert_or_assign(result.source, result);
  }
  if (!results.empty()) remember();
}

bool JobFolder::leads_to(const SourceLinks& links, const fs::path& name) const {
  const std::optional<struct stat> folder = system_.status(name);
  if (!folder || !S_ISDIR(folder->st_mode) || files_below(name).size() != links.files.size()) return false;
  return std::all_of(links.files.begin(), links.files.end(), [&](const std::string& file) {
    std::error_code none;
    return fs::read_symlink(name / file, none) == links.folder / file;
  });
}

void JobFolder::point_at(const SourceLinks& links) {
  const fs::path name = entry(links.source);
  if (links.files.empty()) return link_file(links.folder, name, true);
  if (!links.one_file) {
    if (!leads_to(links, name)) link_each_file(links.files, links.folder, name);
    return;
  }
  for (const std::string& file : links.files) link_file(links.folder / file, name.parent_path() / file, true);
}

void JobFolder::return_to(const SourceLinks& links) {
  const fs::path name = entry(links.source);
  const std::optional<struct stat> now = system_.status(name);
  if (!now || !S_ISDIR(now->st_mode)) return point_at(links);
  for (const fs::path& file : files_below(name)) {
    const std::optional<struct stat> status = system_.status(name / file);
    if (status && !is_link(*status)) link_file(links.folder / file, name / file, true);
  }
}

void JobFolder::expand_folder_link(const Source& source, const std::vector<std::string>& names) {
  const fs::path name = entry(source.name);
  const std::optional<struct stat> now = system_.status(name);
  if (now && S_ISLNK(now->st_mode) && source.shards.empty()) link_each_file(names, source.folder, name);
}

void JobFolder::replace_file(const std::string& source, const std::string& name, const fs::path& copy) {
  const fs::path folder = entry(source);
  const std::optional<struct stat> about = system_.status(folder);
  const fs::path to = about && S_ISDIR(about->st_mode) ? folder / name : folder.parent_path() / name;
  const std::optional<struct stat> now = system_.status(to);
  if (now && S_ISLNK(now->st_mode)) link_file(copy, to, false);
}

void JobFolder::remember() const {
  std::vector<PutResult> all;
  for (const auto& [source, result] : staged_) all.push_back(result);
  const fs::path part = empty_part();
  system_.write_file(part, staged_to_text(all), 0600);
  system_.rename(part, folder_ / kStaged);
}

std::vector<PutResult> JobFolder::staged(const std::vector<std::string>& sources) const {
  std::vector<PutResult> results;
  for (const std::string& source : sources) {
    const auto found = staged_.find(source);
    if (found != staged_.end()) results.push_back(found->second);
  }
  return results;
}

}  // namespace lockstep::transfer
