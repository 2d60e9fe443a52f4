#include "runtime/train/checkpoint/item_files.h"

#include <fcntl.h>

#include <algorithm>
#include <span>
#include <utility>

#include "common/error.h"

namespace lockstep::checkpoint {

ItemFiles::ItemFiles(FileSystem& system, std::filesystem::path checkpoint, const Manifest& manifest,
                     const std::string& item, FileProgress& progress)
    : system_(system), checkpoint_(std::move(checkpoint)), progress_(progress) {
  for (const FileEntry& file : manifest.files) {
    if (file.item != item) continue;
    // The ranks of a node need not have consecutive numbers.
    for (const int rank : file.ranks.empty() ? std::vector<int>{file.rank} : file.ranks) {
      const auto index = static_cast<std::size_t>(rank);
      if (index >= by_rank_.size()) by_rank_.resize(index + 1);
      by_rank_[index] = &file;
    }
  }
  const auto missing = std::find(by_rank_.begin(), by_rank_.end(), nullptr);
  if (missing != by_rank_.end())
    throw Damaged(fmt::format("the state of '{}' of rank {} is missing", item, missing - by_rank_.begin()));
}

TensorFile ItemFiles::header(const FileEntry& file) const {
  const std::string bytes = read_header(system_, checkpoint_, file, progress_);
  try {
    return read_tensor_header(std::as_bytes(std::span(bytes)), file.bytes);
  } catch (const Error& error) {
    throw Damaged(fmt::format("{} cannot be read: {}", file.name, error.what()));
  }
}

void ItemFiles::read(const FileEntry& file, std::vector<FilePart> parts) const {
  read_file(system_, checkpoint_, file, std::move(parts), progress_);
}

void ItemFiles::read(const FileEntry& file, FileBuffer& into) const {
  into.resize(file.bytes);
  read(file, std::vector<FilePart>{{.offset = 0, .into = into.bytes()}});
}

nlohmann::json section_values(const TensorFile& file, const std::string& item) {
  const auto described = file.metadata.find(kOurMetadata);
  if (described == file.metadata.end()) return {};
  return nlohmann::json::parse(described->second).at(item).at("values");
}

std::string read_header(FileSystem& system, const std::filesystem::path& checkpoint, const FileEntry& file,
                        FileProgress& progress) {
  const auto path = checkpoint / file.name;
  progress.begin("reading " + path.string(), file.bytes);
  const UniqueFd fd = system.open(path, O_RDONLY | O_NOFOLLOW);
  std::string bytes;
  const auto read_to = [&](std::uint64_t size) {
    const std::size_t before = bytes.size();
    bytes.resize(std::min(size, file.bytes));
    if (bytes.size() <= before) return;
    read_bytes(system, fd.get(), std::as_writable_bytes(std::span(bytes)).subspan(before), before, path,
               progress);
  };
  read_to(8);
  if (bytes.size() >= 8) read_to(header_bytes(std::as_bytes(std::span(bytes)).first<8>()));
  return bytes;
}

}  // namespace lockstep::checkpoint
