#include "plugin/spank/staging/sources.h"

#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "common/leaf/error.h"
#include "common/leaf/source_name.h"
#include "common/leaf/text.h"

namespace lockstep::spank {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "index.lockstep";

fs::path without_slash(const fs::path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

bool lies_in(const std::string& path, const std::string& prefix) {
  const std::string folder = without_slash(fs::path(prefix).lexically_normal()).string();
  return path == folder || folder == "/" || path.starts_with(folder + "/");
}

// Advice for text that a shell would expand: no shell reads #SBATCH lines.
const char* advice(const std::string& source) {
  if (source.find(":/") != std::string::npos) return "; only files of a mounted file system can be staged";
  if (source.find("/~") != std::string::npos) return "; '~' is not expanded here: write the whole path";
  if (source.find('$') != std::string::npos) return "; variables are not expanded here: write the whole path";
  return "; check the path and its permissions";
}

class NoSource : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void refuse(const std::string& source, int error) {
  const std::string why = "--stage: " + source + ": " + errno_text(error) + advice(source);
  if (error == ENOENT) throw NoSource(why);
  throw Error(why);
}

using Clock = std::chrono::steady_clock;

// Checks at most `left` entries in the folder and its subfolders, and counts them down. The nodes copy folders and regular
// files. `source`: what they are parts of, without symbolic links.
void check_entries(const fs::path& folder, const fs::path& source, int& left, Clock::time_point end) {
  std::vector<fs::path> folders;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator() && left > 0 && Clock::now() < end;
       entry.increment(error)) {
    --left;
    std::error_code removed;
    switch (entry->symlink_status(removed).type()) {
      case fs::file_type::directory:
        folders.push_back(entry->path());
        break;
      case fs::file_type::symlink:
        if (const std::string refused = why_not_followed(entry->path(), source); !refused.empty())
          throw Error("--stage: " + refused);
        break;
      case fs::file_type::fifo:
      case fs::file_type::socket:
      case fs::file_type::character:
      case fs::file_type::block:
        throw Error("--stage: " + entry->path().string() +
                    " is neither a folder nor a regular file; move it elsewhere");
      default:
        break;
    }
  }
  if (error) refuse(folder.string(), error.value());
  for (const fs::path& inner : folders) {
    if (left > 0 && Clock::now() < end) check_entries(inner, source, left, end);
  }
}

// Of a pack, the nodes copy the files that its index names.
void check_folder(const std::string& folder, Clock::time_point end) {
  constexpr int kMaxEntries = 1000;
  struct stat about {};
  if (::stat((fs::path(folder) / kIndex).c_str(), &about) == 0 && S_ISREG(about.st_mode)) return;
  int left = kMaxEntries;
  std::error_code error;
  const fs::path source = fs::canonical(folder, error);
  if (error) refuse(folder, error.value());
  check_entries(folder, source, left, end);
  if (left == kMaxEntries && Clock::now() < end) throw Error("--stage: " + folder + " is empty");
}

// If a pack has an index, the nodes copy the files that it names.
void check_index(const std::string& folder) {
  const std::string index = (fs::path(folder) / kIndex).string();
  struct stat about {};
  if (::stat(index.c_str(), &about) != 0) {
    if (errno == ENOENT) return;
    refuse(index, errno);
  }
  if (about.st_size == 0) throw Error("--stage: " + index + " is empty; pack the source again");
  if (::access(index.c_str(), R_OK) != 0) refuse(index, errno);
}

// "a-{00..31}.tar" and "{a,b}.tar": the nodes expand the braces; here each group is "*".
std::string braces_as_stars(const std::string& pattern) {
  std::string simple;
  int depth = 0;
  for (const char c : pattern) {
    if (c == '{' && depth++ == 0) simple += '*';
    if (depth == 0) simple += c;
    if (c == '}' && depth > 0) --depth;
  }
  return depth == 0 ? simple : pattern;
}

void check_pattern(const std::string& source, Clock::time_point end) {
  const fs::path path(source);
  const std::string folder = path.parent_path().string();
  const std::string pattern = braces_as_stars(path.filename().string());
  bool found = false;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator() && !found && Clock::now() < end;
       entry.increment(error)) {
    found = ::fnmatch(pattern.c_str(), entry->path().filename().c_str(), FNM_PERIOD) == 0;
  }
  if (error) refuse(folder, error.value());
  if (!found && Clock::now() < end) throw NoSource("--stage: " + source + " matches no file");
  check_index(folder);
}

[[noreturn]] void refuse_same_name(const std::string& one, const std::string& other,
                                   const std::string& name) {
  throw Error("--stage: " + one + " and " + other + " would both be $LOCKSTEP_DATA/" + name + "; rename one");
}

void check_prefix(const std::string& source, const std::vector<std::string>& prefixes) {
  const bool allowed = std::any_of(prefixes.begin(), prefixes.end(),
                                   [&](const std::string& prefix) { return lies_in(source, prefix); });
  if (prefixes.empty() || allowed) return;
  throw Error("--stage: " + source + " is outside the folders that may be staged: " + join(prefixes, ", "));
}

}  // namespace

std::string absolute_source(const std::string& source, const std::string& folder) {
  const fs::path path(source);
  return without_slash((path.is_absolute() ? path : fs::path(folder) / path).lexically_normal()).string();
}

void check_names(const std::vector<std::string>& sources, const std::vector<std::string>& prefixes) {
  std::map<std::string, std::string> seen;
  for (const std::string& source : sources) {
    const std::string name = entry_name(source);
    if (name.empty()) throw Error("--stage: " + source + " has no name; give a folder or a shard");
    const auto [other, fresh] = seen.emplace(name, source);
    if (!fresh) refuse_same_name(other->second, source, name);
    check_prefix(source, prefixes);
  }
}

void check_source(const std::string& source, Clock::time_point end) {
  if (is_pattern(source)) return check_pattern(source, end);
  struct stat about {};
  if (::stat(source.c_str(), &about) != 0) {
    const int error = errno;
    // A Megatron pair is named by the common prefix of its two files.
    if (error != ENOENT || ::stat((source + ".idx").c_str(), &about) != 0) refuse(source, error);
    check_source(source + ".idx", end);
    return check_source(source + ".bin", end);
  }
  if (S_ISDIR(about.st_mode)) {
    if (::access(source.c_str(), R_OK | X_OK) != 0) refuse(source, errno);
    check_folder(source, end);
    return check_index(source);
  }
  if (!S_ISREG(about.st_mode)) throw Error("--stage: " + source + " is neither a folder nor a file");
  if (about.st_size == 0) throw Error("--stage: " + source + " is empty");
  if (::access(source.c_str(), R_OK) != 0) refuse(source, errno);
  check_index(fs::path(source).parent_path().string());
}

void check_sources(const std::vector<std::string>& sources, std::chrono::milliseconds timeout, bool in_job) {
  const auto end = Clock::now() + timeout;
  for (const std::string& source : sources) {
    try {
      check_source(source, end);
    } catch (const NoSource&) {
      if (!in_job) throw;
    }
    if (Clock::now() >= end) return;
  }
}

}  // namespace lockstep::spank
