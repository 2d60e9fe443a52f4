#include "staging/transfer/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/pending_calls.h"
#include "staging/pack/formats/format_check.h"
#include "staging/pack/index.h"
#include "staging/transfer/copy/holes.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

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

std::vector<std::uint64_t> sizes_of(const std::vector<ManifestFile>& files) {
  std::vector<std::uint64_t> sizes(files.size());
  std::transform(files.begin(), files.end(), sizes.begin(),
                 [](const ManifestFile& file) { return file.size; });
  return sizes;
}

std::vector<std::string> names_of(const std::vector<ManifestFile>& files) {
  std::vector<std::string> names(files.size());
  std::transform(files.begin(), files.end(), names.begin(),
                 [](const ManifestFile& file) { return file.name; });
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

}  // namespace lockstep::transfer
