#include "staging/step/step_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/file_system.h"
#include "staging/pack/format.h"
#include "staging/pack/index.h"
#include "staging/step/step_report.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStaged = "staged.json";

void make_folder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) fail_errno("cannot make {}", folder.string());
}

bool is_pattern(const std::string& source) {
  return fs::path(source).filename().string().find_first_of("*?[{") != std::string::npos;
}

}  // namespace

std::string entry_name(const std::string& source) {
  fs::path path(source);
  if (!path.has_filename()) path = path.parent_path();
  return (is_pattern(source) ? path.parent_path() : path).filename().string();
}

StepFolder::StepFolder(const fs::path& store, std::uint32_t job)
    : folder_(store / "jobs" / std::to_string(job)) {
  make_folder(store / "jobs");
  while (!lock()) {
  }
  make_folder(folder_ / "data");
  if (!fs::exists(folder_ / kStaged)) return;
  for (PutResult& result : staged_from_text(read_text_file(folder_ / kStaged))) {
    const std::string source = result.source;
    staged_.emplace(source, std::move(result));
  }
}

// False where the folder has been renamed away, to be removed, while this waited for it.
bool StepFolder::lock() {
  const fs::path file = folder_ / "lock";
  make_folder(folder_);
  lock_.reset(::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!lock_ && errno == ENOENT) return false;
  if (!lock_) fail_errno("cannot open {}", file.string());
  while (::flock(lock_.get(), LOCK_EX) != 0) {
    if (errno != EINTR) fail_errno("cannot lock {}", file.string());
  }
  struct stat held {};
  if (::fstat(lock_.get(), &held) != 0) fail_errno("cannot stat {}", file.string());
  const std::optional<struct stat> named = FileSystem::real().status(file);
  return named && named->st_dev == held.st_dev && named->st_ino == held.st_ino;
}

void StepFolder::check_names(const std::vector<std::string>& sources) const {
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

std::vector<std::string> StepFolder::missing(const std::vector<std::string>& sources) const {
  std::vector<std::string> left;
  for (const std::string& source : sources) {
    if (!staged_.contains(source)) left.push_back(source);
  }
  return left;
}

// A name to make something under before it gets its own.
fs::path StepFolder::empty_part() const {
  const fs::path part = folder_ / ".part";
  FileSystem::real().remove_all(part);
  return part;
}

// A reader finds the name at every moment; what was there before, a link or a folder, is replaced in one
// step.
void StepFolder::place(const fs::path& made, const fs::path& name) const {
  const std::optional<struct stat> before = FileSystem::real().status(name);
  const std::optional<struct stat> after = FileSystem::real().status(made);
  const bool folders = (before && S_ISDIR(before->st_mode)) || (after && S_ISDIR(after->st_mode));
  if (!before || !folders) {
    if (::rename(made.c_str(), name.c_str()) != 0) fail_errno("cannot name {}", name.string());
  } else if (::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, name.c_str(), RENAME_EXCHANGE) != 0) {
    // A file system that cannot: there is a moment without the name.
    FileSystem::real().remove_all(name);
    if (::rename(made.c_str(), name.c_str()) != 0) fail_errno("cannot name {}", name.string());
  }
  FileSystem::real().remove_all(
      made);  // what was exchanged; rename() does nothing where both are the same file
}

void StepFolder::link_file(const fs::path& from, const fs::path& to, bool symbolic) const {
  const fs::path part = empty_part();
  const int result = symbolic ? ::symlink(from.c_str(), part.c_str()) : ::link(from.c_str(), part.c_str());
  if (result != 0) fail_errno("cannot link {} to {}", to.string(), from.string());
  place(part, to);
}

void StepFolder::forget(const std::string& source) {
  if (staged_.erase(source) > 0) remember();
}

void StepFolder::add(const PutResult& result) {
  const fs::path name = entry(result.source);
  const bool one_file = !fs::is_directory(result.path);
  const fs::path files = one_file ? result.path.parent_path() : result.path;
  if (one_file && !is_pattern(result.source)) {
    // A file alone is read through what lies beside it: a shard's index, a .bin's .idx.
    for (const fs::directory_entry& file : fs::directory_iterator(files)) {
      link_file(file.path(), name.parent_path() / file.path().filename(), result.shared);
    }
  } else if (result.shared) {
    link_file(files, name, true);
  } else {
    const fs::path part = empty_part();
    make_folder(part);
    for (fs::recursive_directory_iterator file(files), end; file != end; ++file) {
      const fs::path to = part / file->path().lexically_relative(files);
      if (file->is_directory()) {
        make_folder(to);
      } else if (::link(file->path().c_str(), to.c_str()) != 0) {
        fail_errno("cannot link {} to {}", name.string(), file->path().string());
      }
    }
    place(part, name);
  }
  staged_.insert_or_assign(result.source, result);
  remember();
}

void StepFolder::point_at_source(const std::string& source, bool replace) {
  const fs::path name = entry(source);
  const Source found = resolve_source(source);
  const auto point = [&](const fs::path& from, const fs::path& to) {
    if (replace || !FileSystem::real().status(to)) link_file(from, to, true);
  };
  if (found.shards.empty()) return point(found.folder, name);
  std::vector<std::string> names = found.shards;
  if (fs::exists(found.index_file())) names.emplace_back(pack::kIndexName);
  if (found.one_file && !is_pattern(source)) {
    if (names.size() == 1) names = pack::contents_of(found.paths.front()).files;
    for (const std::string& file : names) point(found.folder / file, name.parent_path() / file);
    return;
  }
  if (!replace && FileSystem::real().status(name)) return;
  const fs::path part = empty_part();
  make_folder(part);
  for (const std::string& file : names) {
    const fs::path from = found.folder / file;
    if (::symlink(from.c_str(), (part / file).c_str()) != 0) fail_errno("cannot link {}", from.string());
  }
  place(part, name);
}

void StepFolder::open_up(const std::string& source, const std::vector<std::string>& names) {
  const fs::path name = entry(source);
  const std::optional<struct stat> now = FileSystem::real().status(name);
  const Source found = resolve_source(source);
  if (!now || !S_ISLNK(now->st_mode) || !found.shards.empty()) return;
  const fs::path part = empty_part();
  make_folder(part);
  for (const std::string& file : names) {
    fs::create_directories((part / file).parent_path());
    const fs::path from = found.folder / file;
    if (::symlink(from.c_str(), (part / file).c_str()) != 0) fail_errno("cannot link {}", from.string());
  }
  place(part, name);
}

void StepFolder::replace_file(const std::string& source, const std::string& name, const fs::path& copy) {
  const fs::path folder = entry(source);
  const std::optional<struct stat> about = FileSystem::real().status(folder);
  const fs::path to = about && S_ISDIR(about->st_mode) ? folder / name : folder.parent_path() / name;
  const std::optional<struct stat> now = FileSystem::real().status(to);
  if (now && S_ISLNK(now->st_mode)) link_file(copy, to, false);
}

void StepFolder::remember() const {
  std::vector<PutResult> all;
  for (const auto& [source, result] : staged_) all.push_back(result);
  write_file_atomically(folder_ / kStaged, staged_to_text(all), 0600);
}

std::vector<PutResult> StepFolder::staged(const std::vector<std::string>& sources) const {
  std::vector<PutResult> results;
  for (const std::string& source : sources) {
    const auto found = staged_.find(source);
    if (found != staged_.end()) results.push_back(found->second);
  }
  return results;
}

}  // namespace lockstep::transfer
