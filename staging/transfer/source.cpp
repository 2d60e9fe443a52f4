#include "staging/transfer/source.h"

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/number.h"
#include "common/pending_calls.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxNames = 1'000'000;
constexpr std::int64_t kNanoseconds = 1'000'000'000;

bool exists(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

/// The numbers of "00..31", with as many digits as the first one; empty if the text is not a range.
std::vector<std::string> range(std::string_view text) {
  const std::size_t dots = text.find("..");
  if (dots == std::string_view::npos) return {};
  const std::string_view first = text.substr(0, dots);
  const std::string_view last = text.substr(dots + 2);
  const auto from = to_number<std::size_t>(first);
  const auto to = to_number<std::size_t>(last);
  if (!from || !to || *to < *from || *to - *from >= kMaxNames) return {};
  std::vector<std::string> names;
  for (std::size_t value = *from; value <= *to; ++value)
    names.push_back(fmt::format("{:0{}}", value, first.size()));
  return names;
}

std::vector<std::string> alternatives(std::string_view text) {
  std::vector<std::string> names = range(text);
  if (!names.empty()) return names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    names.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

std::vector<std::string> expand_braces(const std::string& pattern) {
  const std::size_t open = pattern.find('{');
  const std::size_t close = open == std::string::npos ? open : pattern.find('}', open);
  if (close == std::string::npos) return {pattern};
  std::vector<std::string> names;
  for (const std::string& rest : expand_braces(pattern.substr(close + 1))) {
    for (const std::string& choice :
         alternatives(std::string_view(pattern).substr(open + 1, close - open - 1))) {
      names.push_back(fmt::format("{}{}{}", std::string_view(pattern).substr(0, open), choice, rest));
      if (names.size() > kMaxNames) fail_usage("{} stands for more than {} names", pattern, kMaxNames);
    }
  }
  return names;
}

std::vector<fs::path> expand_wildcards(const std::string& pattern) {
  glob_t found{};
  const int code = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
  std::vector<fs::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (code == GLOB_ABORTED) fail("{}: cannot read a folder of this pattern", pattern);
  if (code != 0 && code != GLOB_NOMATCH) fail("cannot expand {}", pattern);
  return paths;
}

fs::path without_links(const fs::path& path) {
  std::error_code error;
  fs::path real = fs::canonical(path, error);
  if (!error) return real;
  errno = error.value();
  fail_errno("{}", path.string());
}

}  // namespace

void fail_changed(const fs::path& file, const std::string& reader) {
  fail("{} changed while it was being staged{}: stop the writers and stage again", file.string(),
       reader.empty() ? "" : fmt::format(" ({} read another version)", reader));
}

FileState FileState::of(const struct stat& status) {
  return {static_cast<std::uint64_t>(status.st_size),
          status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec, status.st_ino};
}

fs::path Source::index_file() const {
  return folder / pack::kIndexName;
}

std::vector<fs::path> expand_pattern(const std::string& pattern) {
  if (pattern.find_first_of("{*?[") == std::string::npos || exists(pattern)) return {pattern};
  std::vector<fs::path> paths;
  for (const std::string& name : expand_braces(pattern)) {
    if (name.find_first_of("*?[") == std::string::npos) {
      if (!exists(name)) fail("{}: {}: No such file or directory", pattern, name);
      paths.emplace_back(name);
      continue;
    }
    const std::vector<fs::path> found = expand_wildcards(name);
    paths.insert(paths.end(), found.begin(), found.end());
  }
  if (paths.empty()) fail("{}: matches nothing", pattern);
  return paths;
}

Source resolve_source(const std::string& name) {
  const PendingCall call(name);
  const std::vector<fs::path> paths = expand_pattern(name);
  if (name.empty()) fail_usage("the name of a source is empty");
  Source source;
  source.name = name;
  source.paths = paths;
  for (const fs::path& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) {
      const int error = errno;
      // Megatron's own tools name a pair of files by their common prefix.
      if (error != ENOENT || ::stat((path.string() + ".idx").c_str(), &status) != 0) {
        errno = error;
        fail_errno("{}", path.string());
      }
    }
    if (S_ISDIR(status.st_mode)) {
      if (paths.size() > 1)
        fail("{}: matches the folder {} among others; name each folder as a source", name, path.string());
      source.folder = without_links(path);
      return source;
    }
    if (!S_ISREG(status.st_mode)) fail("{} is neither a folder nor a regular file", path.string());
    // Only the folder is resolved: the index knows the file by the name that was given.
    const fs::path folder = without_links(parent_of(path));
    if (source.folder.empty()) source.folder = folder;
    if (folder != source.folder)
      fail("{}: matches files of {} and {}; name each pack as a source", name, source.folder.string(),
           folder.string());
    if (path.filename() != pack::kIndexName) source.shards.push_back(path.filename().string());
  }
  source.one_file = paths.size() == 1 && !source.shards.empty();
  std::sort(source.shards.begin(), source.shards.end());
  source.shards.erase(std::unique(source.shards.begin(), source.shards.end()), source.shards.end());
  return source;
}

std::optional<IndexState> index_state(const Source& source) {
  const fs::path file = source.index_file();
  const PendingCall call(file);
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT) return {};
    fail_errno("cannot open {}", file.string());
  }
  IndexState state;
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno("cannot stat {}", file.string());
  state.file = FileState::of(status);
  const auto size = static_cast<off_t>(state.digest.size());
  if (status.st_size < size ||
      ::pread(fd.get(), state.digest.data(), state.digest.size(), status.st_size - size) != size) {
    pack::locate(source.folder);  // says what is wrong
    fail("cannot read {}", file.string());
  }
  return state;
}

std::string object_name(const Source& source, const IndexState& index) {
  std::string text = fmt::format("1\n{}\n{}\n{}.{:09}\n{}\n{}\n", source.folder.string(), index.file.size,
                                 index.file.mtime_ns / kNanoseconds, index.file.mtime_ns % kNanoseconds,
                                 index.file.inode, pack::to_hex(index.digest));
  for (const std::string& shard : source.shards) text += shard + '\n';
  return pack::to_hex(pack::digest_of(std::as_bytes(std::span(text))));
}

}  // namespace lockstep::transfer
