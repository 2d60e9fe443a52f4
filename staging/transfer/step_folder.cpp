#include "staging/transfer/step_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/error.h"
#include "staging/pack/index.h"
#include "staging/transfer/source.h"
#include "staging/transfer/step_report.h"

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
  make_folder(folder_);
  lock_ = open_file(folder_ / "lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  while (::flock(lock_.get(), LOCK_EX) != 0) {
    if (errno != EINTR) fail_errno("cannot lock {}", (folder_ / "lock").string());
  }
  make_folder(folder_ / "data");
  if (!fs::exists(folder_ / kStaged)) return;
  for (PutResult& result : results_from_json(read_text_file(folder_ / kStaged))) {
    const std::string source = result.source;
    staged_.emplace(source, std::move(result));
  }
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

// By rename, so that a reader finds the name at every moment; a link that is there is replaced.
void StepFolder::link_file(const fs::path& from, const fs::path& to) const {
  const fs::path part = folder_ / ".part";
  ::unlink(part.c_str());
  if (::link(from.c_str(), part.c_str()) != 0) fail_errno("cannot link {} to {}", to.string(), from.string());
  if (::rename(part.c_str(), to.c_str()) != 0) fail_errno("cannot name {}", to.string());
  ::unlink(part.c_str());  // rename() does nothing where both are the same file already
}

void StepFolder::add(const PutResult& result) {
  const fs::path entry = folder_ / "data" / entry_name(result.source);
  const bool one_file = !fs::is_directory(result.path);
  const fs::path files = one_file ? result.path.parent_path() : result.path;
  if (!one_file || is_pattern(result.source)) {
    make_folder(entry);
    for (const fs::directory_entry& file : fs::directory_iterator(files)) {
      link_file(file.path(), entry / file.path().filename());
    }
  } else {
    // A shard alone is read through the index beside it.
    link_file(files / pack::kIndexName, entry.parent_path() / pack::kIndexName);
    link_file(result.path, entry);
  }
  staged_.insert_or_assign(result.source, result);
  remember();
}

void StepFolder::remember() const {
  std::vector<PutResult> all;
  for (const auto& [source, result] : staged_) all.push_back(result);
  write_file_atomically(folder_ / kStaged, to_json(all).dump(), 0600);
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
