#include "staging/pack/format.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>

#include "common/crc32c.h"
#include "common/error.h"
#include "common/files.h"
#include "common/leaf/source_name.h"
#include "common/leaf/text.h"
#include "staging/pack/file_status.h"
#include "staging/pack/formats/lmdb_tree.h"
#include "staging/pack/formats/megatron_layout.h"
#include "staging/pack/index.h"
#include "staging/pack/member_name.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMagicBytes = 32;
constexpr std::string_view kSideIndexEnd = ".lockstep";
using FirstBytes = std::string;

fs::path without_links(const fs::path& path) {
  std::error_code error;
  fs::path real = fs::canonical(path, error);
  if (error) fail("{}: {}", path.string(), error.message());
  return real;
}

FirstBytes first_bytes(const fs::path& file) {
  const UniqueFd fd = open_file(file, O_RDONLY);
  FirstBytes bytes(kMagicBytes, '\0');
  const ssize_t got = read_at(fd.get(), std::as_writable_bytes(std::span(bytes)), 0);
  if (got < 0) fail_errno("cannot read {}", file.string());
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

bool is_megatron_index(std::string_view first_bytes) {
  return first_bytes.starts_with(std::string_view(megatron::kMagic, sizeof(megatron::kMagic)));
}

bool is_tfrecord(std::string_view first_bytes) {
  std::uint32_t crc = 0;
  if (first_bytes.size() < 8 + sizeof(crc)) return false;
  std::memcpy(&crc, first_bytes.data() + 8, sizeof(crc));
  return masked_crc32c(crc32c(std::as_bytes(std::span(first_bytes.substr(0, 8))))) == crc;
}

std::string_view last_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

/// "x.tfrecord-00003-of-00010" without its number; a name without one as it is.
std::string_view without_shard_number(std::string_view name) {
  const std::size_t of = name.rfind("-of-");
  if (of == std::string_view::npos) return name;
  const std::size_t dash = name.substr(0, of).rfind('-');
  if (dash == std::string_view::npos || !is_number(name.substr(of + 4)) ||
      !is_number(name.substr(dash + 1, of - dash - 1)))
    return name;
  return name.substr(0, dash);
}

bool is_numbered(std::string_view name) {
  return without_shard_number(name).size() != name.size();
}

/// The format that a file's name shows, in any case; plain if it shows none.
Format format_by_name(std::string_view path) {
  const std::string name = lower_case(last_name(path));
  if (ends_with_any(name, {".h5", ".hdf5", ".hdf", ".he5"})) return Format::hdf5;
  if (ends_with_any(name, {".mdb", ".lmdb"})) return Format::lmdb;
  if (ends_with_any(name, {".rec"})) return Format::recordio;
  if (ends_with_any(without_shard_number(name), {".tfrecord", ".tfrecords", ".tfrec"}))
    return Format::tfrecord;
  return Format::plain;
}

/// Whether a file is a lock or an index beside the data, which may change while the data stay the same.
bool is_not_data(std::string_view path) {
  return last_name(path) == "lock.mdb" || ends_with_any(path, {".mdb-lock", ".lmdb-lock"}) ||
         is_side_index(path);
}

std::string replace_end(std::string_view path, std::string_view end, std::string_view by) {
  return std::string(path.substr(0, path.size() - end.size())).append(by);
}

enum class Links { inside, all };  // which are followed

struct Listing {
  const fs::path& folder;
  Links links;
  std::vector<fs::path> open;  // the folders that are being listed, without symbolic links
  std::vector<std::string> files;
};

void add_folder(const fs::path& part, const fs::path& real, Listing& listing);

void add_link_to_folder(const fs::path& link, Listing& listing) {
  const fs::path real = without_links(link);
  if (std::find(listing.open.begin(), listing.open.end(), real) != listing.open.end())
    fail("{} is a symbolic link to a folder that contains it: remove it", link.string());
  add_folder(link, real, listing);
}

/// Does not use recursive_directory_iterator, whose errors name no folder. The listing tells the type of each entry
/// that is not a link, which saves a system call for each file.
void add_folder(const fs::path& part, const fs::path& real, Listing& listing) {
  listing.open.push_back(real);
  std::error_code error;
  fs::directory_iterator entry(part, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path& path = entry->path();
    if (entry->is_symlink() && listing.links == Links::inside) {
      const std::string refused = why_not_followed(path, listing.folder);
      if (!refused.empty()) fail("{}", refused);
    }
    if (entry->is_directory()) {
      if (entry->is_symlink()) {
        add_link_to_folder(path, listing);
      } else {
        add_folder(path, real / path.filename(), listing);
      }
      continue;
    }
    if (!entry->is_regular_file())
      fail("{} is neither a folder nor a regular file: move it out of the data", path.string());
    std::string name = path.lexically_relative(listing.folder).string();
    if (!is_not_data(name)) listing.files.push_back(std::move(name));
  }
  if (error) fail("cannot list {}: {}", part.string(), error.message());
  listing.open.pop_back();
}

std::vector<std::string> list(const fs::path& folder, Links links) {
  Listing listing{.folder = folder, .links = links, .open = {}, .files = {}};
  add_folder(folder, folder, listing);
  if (listing.files.empty()) fail("{} is empty", folder.string());
  std::sort(listing.files.begin(), listing.files.end());
  return std::move(listing.files);
}

bool contains(const std::vector<std::string>& sorted, const std::string& name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

/// Whether a folder holds Megatron data: all .idx files without a .rec are Megatron indexes.
bool has_megatron(const fs::path& folder, const std::vector<std::string>& files) {
  std::optional<bool> decided;
  for (const std::string& file : files) {
    if (!file.ends_with(".idx") || is_system_file(file) || contains(files, replace_end(file, ".idx", ".rec")))
      continue;
    if (!decided) decided = is_megatron_index(first_bytes(folder / file));
    if (!*decided) return false;
    const std::string data = replace_end(file, ".idx", ".bin");
    if (!contains(files, data))
      fail("{} is missing; its index {} exists", (folder / data).string(), (folder / file).string());
  }
  return decided.value_or(false);
}

}  // namespace

bool may_be_records(std::string_view path) {
  const std::string name = lower_case(last_name(path));
  const bool counted = name.find('.') == std::string_view::npos && name.back() >= '0' && name.back() <= '9';
  return !is_stray(path) &&
         (counted || is_numbered(name) || ends_with_any(name, {".record", ".records", ".tfr"}));
}

namespace {

Format format_of(const fs::path& folder, const std::vector<std::string>& files) {
  std::set<Format> found;
  for (const std::string& file : files) {
    if (is_system_file(file)) continue;
    const Format format = format_by_name(file);
    if (format != Format::plain) found.insert(format);
  }
  if (has_megatron(folder, files)) found.insert(Format::megatron);
  if (found.empty()) {
    const auto records = std::find_if(files.begin(), files.end(), may_be_records);
    if (records != files.end() && is_tfrecord(first_bytes(folder / *records))) return Format::tfrecord;
  }
  return found.size() == 1 ? *found.begin() : Format::plain;
}

Contents of_pack(const fs::path& folder) {
  const Index index = Index::load(folder / kIndexName);
  Contents contents{.format = Format::tar, .folder = folder, .files = {std::string(kIndexName)}};
  for (std::size_t s = 0; s < index.shards(); ++s) contents.files.emplace_back(index.shard_name(s));
  std::sort(contents.files.begin(), contents.files.end());
  return contents;
}

Contents of_folder(const fs::path& folder, Links links) {
  if (is_file(folder / kIndexName)) return of_pack(folder);
  Contents contents{.format = {}, .folder = folder, .files = list(folder, links)};
  contents.format = format_of(folder, contents.files);
  contents.by_content =
      contents.format == Format::tfrecord &&
      std::none_of(contents.files.begin(), contents.files.end(), [](const std::string& file) {
        return !is_system_file(file) && format_by_name(file) == Format::tfrecord;
      });
  return contents;
}

Format format_by_magic(const FirstBytes& bytes) {
  if (bytes.starts_with("\x89HDF\r\n\x1a\n")) return Format::hdf5;
  if (bytes.starts_with("\x0a\x23\xd7\xce")) return Format::recordio;
  if (is_lmdb(std::as_bytes(std::span(bytes)))) return Format::lmdb;
  if (is_tfrecord(bytes)) return Format::tfrecord;
  return Format::plain;
}

/// Finds a Megatron pair by either of its files.
bool add_megatron_pair(Contents& contents, const std::string& name) {
  const std::string_view end =
      std::string_view(name).substr(name.size() - std::min<std::size_t>(4, name.size()));
  if (end != ".bin" && end != ".idx") return false;
  const std::string data = replace_end(name, end, ".bin");
  const std::string index = replace_end(name, end, ".idx");
  if (!is_file(contents.folder / index) || !is_megatron_index(first_bytes(contents.folder / index)))
    return false;
  if (!is_file(contents.folder / data))
    fail("{} is missing; its index {} exists", (contents.folder / data).string(), index);
  contents.format = Format::megatron;
  contents.files = {data, index};
  return true;
}

bool add_recordio_pair(Contents& contents, const std::string& name) {
  if (!ends_with_any(name, {".rec", ".idx"})) return false;
  const std::string data = name.substr(0, name.size() - 4) + ".rec";
  const std::string index = name.substr(0, name.size() - 4) + ".idx";
  if (!is_file(contents.folder / data)) return false;
  contents.format = Format::recordio;
  contents.files = {data};
  if (is_file(contents.folder / index)) contents.files = {index, data};
  return true;
}

Contents of_file(const fs::path& folder, const std::string& name) {
  if (name == kIndexName) return of_pack(folder);
  Contents contents{.format = {}, .folder = folder, .files = {name}, .one_file = true};
  if (is_file(folder / kIndexName)) {
    const Index index = Index::load(folder / kIndexName);
    if (index.find_shard(name) != index.shards()) {
      contents.format = Format::tar;
      contents.files = {std::string(kIndexName), name};
      std::sort(contents.files.begin(), contents.files.end());
      return contents;
    }
  }
  if (add_megatron_pair(contents, name) || add_recordio_pair(contents, name)) return contents;
  contents.format = format_by_name(name);
  if (contents.format == Format::plain) contents.format = format_by_magic(first_bytes(folder / name));
  return contents;
}

Contents find(const fs::path& source, Links links) {
  const fs::path name = without_slash(source);
  // Megatron's tools name a pair by the common prefix of its two files.
  if (::access(name.c_str(), F_OK) != 0 && is_file(name.string() + ".idx"))
    return find(name.string() + ".idx", links);
  const mode_t mode = status_of(name).st_mode;
  if (S_ISDIR(mode)) return of_folder(without_links(name), links);
  if (!S_ISREG(mode)) fail("{} is neither a folder nor a regular file", name.string());
  // Only the folder is resolved: other files and indexes know the file by this name.
  return of_file(without_links(parent_of(name)), name.filename().string());
}

}  // namespace

std::string_view name_of(Format format) {
  constexpr std::array<std::string_view, 7> kNames = {"tar",  "megatron", "tfrecord", "lmdb",
                                                      "hdf5", "recordio", "plain"};
  return kNames.at(static_cast<std::size_t>(format));
}

Contents contents_of(const fs::path& source) {
  return find(source, Links::inside);
}

Contents readable_contents_of(const fs::path& source) {
  return find(source, Links::all);
}

bool is_of_format(Format format, std::string_view file) {
  if (is_system_file(file)) return false;
  return format_by_name(file) == format || (format == Format::tfrecord && is_numbered(file));
}

bool is_data_file(const Contents& contents, std::string_view file) {
  if (contents.one_file) return true;
  if (contents.format == Format::megatron) return !is_system_file(file);
  return is_of_format(contents.format, file) || (contents.by_content && may_be_records(file));
}

std::string side_index_name(std::string_view data_file) {
  return fmt::format(".{}{}", data_file, kSideIndexEnd);
}

bool is_side_index(std::string_view path) {
  std::string_view name = last_name(path);
  if (name.ends_with(kUnfinishedEnd)) name.remove_suffix(kUnfinishedEnd.size());
  return name.starts_with('.') && name.ends_with(kSideIndexEnd) && name.size() > kSideIndexEnd.size() + 1;
}

}  // namespace lockstep::pack
