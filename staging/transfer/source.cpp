#include "staging/transfer/source.h"

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "common/pending_calls.h"
#include "common/units.h"
#include "staging/pack/formats/format_check.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

constexpr int kRetries = 5;

/// Errors that may pass when the file system can be reached again, unlike a file that is gone or not readable.
constexpr std::array kMayPass = {EIO,       EREMOTEIO, ESTALE,       ENOTCONN, ECONNRESET,
                                 ETIMEDOUT, EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH};
bool may_pass(int error) {
  return std::find(kMayPass.begin(), kMayPass.end(), error) != kMayPass.end();
}

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
  for (const std::string_view name : split(text, ',')) names.emplace_back(name);
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

// The files of a source of any format but packs.
pack::Contents contents_of(const Source& source) {
  const auto look = [&](const fs::path& path) {
    const PendingCall call(path);
    return pack::contents_of(path);
  };
  pack::Contents all = look(source.paths.front());
  if (source.paths.size() == 1) return all;
  std::vector<pack::Contents> others(source.paths.size());
  parallel_for(source.paths.size(), kManyAtOnce, [&](std::size_t i) { others[i] = look(source.paths[i]); });
  for (const pack::Contents& other : others) {
    if (other.format != all.format) all.format = pack::Format::plain;
    all.files.insert(all.files.end(), other.files.begin(), other.files.end());
  }
  std::sort(all.files.begin(), all.files.end());
  all.files.erase(std::unique(all.files.begin(), all.files.end()), all.files.end());
  all.one_file = false;
  return all;
}

std::string name_for(const Manifest& manifest) {
  std::string text =
      fmt::format("2\n{}\n{}\n{}\n", manifest.folder.string(), pack::name_of(manifest.format), manifest.main);
  for (const ManifestFile& file : manifest.files) {
    text += fmt::format("{}\n{}\n{}\n{}\n", file.name, file.size, file.state->mtime_ns, file.state->inode);
    if (file.executable) text += "x\n";
  }
  return pack::to_hex(pack::digest_of(std::as_bytes(std::span(text))));
}

}  // namespace

void retry_source(std::chrono::milliseconds pause, const std::function<void()>& work,
                  const std::function<void()>& before_next) {
  std::chrono::milliseconds waited{};
  for (int retry = 0;; ++retry) {
    std::string failed;
    try {
      return work();
    } catch (const SystemError& error) {
      if (!may_pass(error.code())) throw;
      failed = error.what();
    } catch (const std::system_error& error) {  // of std::filesystem
      if (!may_pass(error.code().value())) throw;
      failed = error.what();
    }
    if (retry == kRetries) {
      throw SourceUnreachable(
          fmt::format("{} (tried {} times in {}): check that its file system is mounted and responding",
                      failed, kRetries + 1, format_seconds(std::chrono::duration<double>(waited).count())));
    }
    std::this_thread::sleep_for(pause);
    waited += pause;
    pause *= 2;
    if (before_next) before_next();
  }
}

void fail_changed(const fs::path& file, const std::string& reader) {
  fail("{} changed while it was being staged{}: stop the writers and stage again", file.string(),
       reader.empty() ? "" : fmt::format(" ({} read another version)", reader));
}

FileState FileState::of(int fd, const fs::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_errno("cannot stat {}", path.string());
  return of(status);
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
  state.file = FileState::of(fd.get(), file);
  const std::size_t size = state.digest.size();
  const auto end = static_cast<off_t>(state.file.size);
  if (state.file.size < size || ::pread(fd.get(), state.digest.data(), size,
                                        end - static_cast<off_t>(size)) != static_cast<ssize_t>(size)) {
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

std::vector<std::uint64_t> sizes_of(const std::vector<ManifestFile>& files) {
  std::vector<std::uint64_t> sizes;
  for (const ManifestFile& file : files) sizes.push_back(file.size);
  return sizes;
}

std::vector<std::string> names_of(const std::vector<ManifestFile>& files) {
  std::vector<std::string> names;
  for (const ManifestFile& file : files) names.push_back(file.name);
  return names;
}

std::vector<ManifestFile> shards_of(const pack::Index& index) {
  std::vector<ManifestFile> files;
  for (std::size_t s = 0; s < index.shards(); ++s)
    files.push_back({std::string(index.shard_name(s)), index.shard(s).size, {}, index.shard(s).digest});
  return files;
}

std::vector<ManifestFile> files_of(const cache::ObjectInfo& info) {
  std::vector<ManifestFile> files;
  for (const cache::ObjectFile& file : info.files) files.push_back({file.name, file.size, {}, {}});
  return files;
}

Manifest look_at(const Source& source) {
  Manifest manifest;
  manifest.source = source;
  if (std::optional<IndexState> index = index_state(source)) {
    manifest.format = pack::Format::tar;
    manifest.folder = source.folder;
    manifest.one_file = source.one_file;
    if (source.one_file) manifest.main = source.shards.front();
    manifest.index = *index;
    manifest.object = object_name(source, *index);
    return manifest;
  }
  const pack::Contents contents = contents_of(source);
  if (contents.format == pack::Format::tar) {
    fail("{}: name the shards of a pack by its folder or by one pattern, or name one shard", source.name);
  }
  manifest.format = contents.format;
  manifest.folder = contents.folder;
  manifest.one_file = contents.one_file;
  if (contents.one_file) {
    const std::string named = source.paths.front().filename().string();
    const bool exact = std::find(contents.files.begin(), contents.files.end(), named) != contents.files.end();
    manifest.main = exact ? named : contents.files.front();
  }
  manifest.files.resize(contents.files.size());
  parallel_for(contents.files.size(), kManyAtOnce, [&](std::size_t i) {
    const fs::path path = contents.folder / contents.files[i];
    const PendingCall call(path);
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) fail_errno("{}", path.string());
    if (S_ISLNK(status.st_mode) && ::stat(path.c_str(), &status) != 0) fail_errno("{}", path.string());
    if (!S_ISREG(status.st_mode)) fail("{} is not a regular file", path.string());
    const FileState state = FileState::of(status);
    const bool executable = (status.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH)) != 0;
    manifest.files[i] = {contents.files[i], state.size, state, {}, executable, bytes_of_holes(path, status)};
  });
  {
    const PendingCall call(contents.folder);
    pack::check_complete(contents.folder, contents);
  }
  manifest.object = name_for(manifest);
  return manifest;
}

void check_unchanged(const Manifest& manifest) {
  if (!manifest.packed()) return;
  const std::optional<IndexState> now = index_state(manifest.source);
  if (now != manifest.index) fail_changed(manifest.folder);
}

std::string state_digest(const Manifest& manifest) {
  std::string text;
  for (const ManifestFile& file : manifest.files) {
    text += fmt::format("{}\n{}\n{}\n", file.name, file.size, file.state ? file.state->mtime_ns : 0);
    if (file.executable) text += "x\n";
  }
  return pack::to_hex(pack::digest_of(std::as_bytes(std::span(text))));
}

std::string source_version(const Manifest& manifest) {
  if (manifest.packed()) return pack::to_hex(manifest.index.digest);
  return manifest.files.empty() ? manifest.seen_state : state_digest(manifest);
}

std::string list_to_text(const Manifest& manifest) {
  nlohmann::json files = nlohmann::json::array();
  for (const ManifestFile& file : manifest.files) {
    // Names are bytes, not UTF-8 text.
    files.push_back({nlohmann::json::binary_t({file.name.begin(), file.name.end()}), file.size,
                     file.executable, file.holes});
    if (file.state) files.back().push_back(file.state->mtime_ns);
  }
  const nlohmann::json list{{"format", static_cast<int>(manifest.format)},
                            {"one_file", manifest.one_file},
                            {"main", nlohmann::json::binary_t({manifest.main.begin(), manifest.main.end()})},
                            {"files", std::move(files)}};
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(list);
  return {bytes.begin(), bytes.end()};
}

void list_from_text(const std::string& text, Manifest& manifest) {
  const auto name_of = [](const nlohmann::json& value) {
    const auto& bytes = value.get_binary();
    return std::string(bytes.begin(), bytes.end());
  };
  try {
    const nlohmann::json list = nlohmann::json::from_cbor(text);
    const int format = list.at("format");
    if (format <= static_cast<int>(pack::Format::tar) || format > static_cast<int>(pack::Format::plain)) {
      fail("the list of files has an unknown format");
    }
    manifest.format = static_cast<pack::Format>(format);
    manifest.one_file = list.at("one_file");
    manifest.main = name_of(list.at("main"));
    manifest.files.clear();
    for (const nlohmann::json& file : list.at("files")) {
      manifest.files.push_back({name_of(file.at(0)), file.at(1), {}, {}, file.at(2), file.at(3)});
      if (manifest.files.back().holes > manifest.files.back().size)
        fail("the list of files has wrong numbers");
      if (file.size() > 4) manifest.files.back().state = FileState{file.at(1), file.at(4), 0};
      const fs::path name(manifest.files.back().name);
      const bool leads_out = name.empty() || name.is_absolute() ||
                             std::any_of(name.begin(), name.end(), [](const fs::path& part) {
                               return part == ".." || part == "." || part.empty();
                             });
      if (leads_out) fail("the list of files contains the unsafe name '{}'", name.string());
    }
  } catch (const nlohmann::json::exception& error) {
    fail("cannot parse the list of files: {}", error.what());
  }
}

ByteRange next_data(int fd, std::uint64_t begin, std::uint64_t end) {
  const off_t data = ::lseek(fd, static_cast<off_t>(begin), SEEK_DATA);
  if (data < 0) return errno == ENXIO ? ByteRange{end, end} : ByteRange{begin, end};
  const std::uint64_t first = std::max(begin, static_cast<std::uint64_t>(data));
  if (first >= end) return {end, end};
  const off_t hole = ::lseek(fd, static_cast<off_t>(first), SEEK_HOLE);
  if (hole < 0 || static_cast<std::uint64_t>(hole) <= first) return {first, end};
  return {first, std::min(end, static_cast<std::uint64_t>(hole))};
}

std::uint64_t bytes_of_holes(const std::filesystem::path& file, const struct stat& status) {
  const auto size = static_cast<std::uint64_t>(status.st_size);
  // A file system that compresses also occupies less.
  if (size < kHoleBytes || static_cast<std::uint64_t>(status.st_blocks) * S_BLKSIZE >= size) return 0;
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) return 0;
  std::uint64_t stored = 0;
  for (std::uint64_t at = 0; at < size;) {
    const ByteRange data = next_data(fd.get(), at, size);
    stored += data.end - data.begin;
    at = data.end;
  }
  return size - stored;
}

}  // namespace lockstep::transfer
