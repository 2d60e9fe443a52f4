#include "runtime/train/checkpoint/files_of_items.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "common/error.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kSmallItems = "state";
constexpr const char* kOurMetadata = "lockstep";

json description_of(const Item& item, const Section& section) {
  return {{"type", item.type()}, {"values", section.values}};
}

Metadata metadata_of(const json& items) {
  // "format" says to Python's readers that the tensors are PyTorch's.
  return {{"format", "pt"}, {kOurMetadata, items.dump()}};
}

}  // namespace

std::vector<OutgoingFile> snapshot(const std::vector<NamedItem>& items, int rank,
                                   std::deque<FileBuffer>& buffers) {
  std::vector<OutgoingFile> files;
  TensorCopies copies;
  const auto add = [&](std::string file, std::string item, const std::vector<NamedTensor>& tensors,
                       const json& described) {
    if (files.size() == buffers.size()) buffers.emplace_back();
    FileBuffer& buffer = buffers[files.size()];
    copies.add(tensors, metadata_of(described), buffer);
    files.push_back({std::move(file), std::move(item), buffer.bytes()});
  };
  std::vector<NamedTensor> small;
  json small_items = json::object();
  for (const auto& [name, item] : items) {
    const bool per_rank = item->kind() == Item::Kind::per_rank;
    if (!per_rank && rank != 0) continue;
    Section section = item->save();
    const json described = description_of(*item, section);
    if (item->kind() == Item::Kind::small) {
      small_items[name] = described;
      for (auto& tensor : section.tensors)
        small.push_back({fmt::format("{}/{}", name, tensor.name), std::move(tensor.tensor)});
      continue;
    }
    add(per_rank ? fmt::format("{}-{:05}.safetensors", name, rank) : name + ".safetensors", name,
        section.tensors, {{name, described}});
  }
  if (!small_items.empty()) add(fmt::format("{}.safetensors", kSmallItems), "", small, small_items);
  copies.run();
  return files;
}

Headers read_headers(FileSystem& system, const Found& found, FileProgress& progress) {
  Headers headers{.manifest = found.manifest, .bytes = {}};
  for (const FileEntry& file : found.manifest.files) {
    const auto path = found.folder / file.name;
    progress.begin("reading " + path.string(), file.bytes);
    const UniqueFd fd = system.open(path, O_RDONLY | O_NOFOLLOW);
    std::string& bytes = headers.bytes.emplace_back();
    const auto read_to = [&](std::uint64_t size) {
      const std::size_t before = bytes.size();
      bytes.resize(std::min(size, file.bytes));
      if (bytes.size() <= before) return;
      read_bytes(system, fd.get(), std::as_writable_bytes(std::span(bytes)).subspan(before), before, path,
                 progress);
    };
    read_to(file.item.empty() ? file.bytes : 8);
    if (!file.item.empty() && bytes.size() >= 8)
      read_to(header_bytes(std::as_bytes(std::span(bytes)).first<8>()));
  }
  return headers;
}

std::map<std::string, SavedItem> saved_items(const Headers& headers) {
  std::map<std::string, SavedItem> saved;
  for (std::size_t i = 0; i < headers.bytes.size(); ++i) {
    const FileEntry& entry = headers.manifest.files[i];
    try {
      const auto bytes = std::as_bytes(std::span(headers.bytes[i]));
      const TensorFile file =
          entry.item.empty() ? read_tensor_file(bytes) : read_tensor_header(bytes, entry.bytes);
      const auto items = json::parse(file.metadata.at(kOurMetadata));
      for (const auto& [name, described] : items.items()) {
        Section section;
        section.values = described.at("values");
        for (const NamedTensor& tensor : file.tensors) {
          if (!entry.item.empty()) {
            section.tensors.push_back(tensor);
          } else if (tensor.name.starts_with(name + "/")) {
            section.tensors.push_back({tensor.name.substr(name.size() + 1), tensor.tensor});
          }
        }
        SavedItem& item = saved[name];
        item.type = described.at("type");
        item.ranks.push_back(std::move(section));
        item.files.push_back(i);
      }
    } catch (const std::exception& error) {
      fail("{} cannot be read: {}", entry.name, error.what());
    }
  }
  return saved;
}

Section section_in(const FileEntry& entry, std::span<const std::byte> file) {
  try {
    TensorFile read = read_tensor_file(file);
    return {.tensors = std::move(read.tensors),
            .values = json::parse(read.metadata.at(kOurMetadata)).at(entry.item).at("values")};
  } catch (const std::exception& error) {
    fail("{} cannot be read: {}", entry.name, error.what());
  }
}

void check_fit(const std::vector<NamedItem>& items, const std::map<std::string, SavedItem>& saved) {
  for (const auto& [name, item] : items) {
    const auto found = saved.find(name);
    if (found == saved.end()) fail("it has no '{}', which this program added", name);
    if (found->second.type != item->type())
      fail("'{}' is of type {} in the checkpoint, but {} here", name, found->second.type, item->type());
    try {
      item->check(found->second.ranks);
    } catch (const std::exception& error) {
      fail("'{}' differs: {}", name, error.what());
    }
  }
  for (const auto& [name, item] : saved) {
    const bool known = std::any_of(items.begin(), items.end(),
                                   [&name = name](const NamedItem& mine) { return mine.name == name; });
    if (!known) fail("it has '{}', which this program did not add", name);
  }
}

}  // namespace lockstep::checkpoint
