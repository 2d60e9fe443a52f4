#include "runtime/train/checkpoint/files_of_items.h"

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

std::map<std::string, SavedItem> saved_items(const Contents& contents) {
  std::map<std::string, SavedItem> saved;
  for (std::size_t i = 0; i < contents.files.size(); ++i) {
    const FileEntry& entry = contents.manifest.files[i];
    try {
      const TensorFile file = read_tensor_file(contents.files[i]);
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
      }
    } catch (const std::exception& error) {
      fail("{} cannot be read: {}", entry.name, error.what());
    }
  }
  return saved;
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
