#include "runtime/train/checkpoint/files_of_items.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "common/error.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kSmallItems = "state";

/// The key of a file's metadata under which the items are described.
constexpr const char* kOurMetadata = "lockstep";

constexpr const char* kRanks = "ranks";  // in the description of an item with the sections of a node's ranks

json description_of(const Item& item, const Section& section) {
  return {{"type", item.type()}, {"values", section.values}};
}

std::string tensor_name(const std::string& section, const std::string& tensor) {
  return fmt::format("{}/{}", section, tensor);
}

// The tensors of one of several sections in a file.
std::vector<NamedTensor> tensors_under(const TensorFile& file, const std::string& section) {
  std::vector<NamedTensor> tensors;
  for (const NamedTensor& tensor : file.tensors) {
    if (tensor.name.starts_with(section + "/"))
      tensors.push_back({tensor.name.substr(section.size() + 1), tensor.tensor});
  }
  return tensors;
}

// The sections of an item in a file, with the ranks that saved them.
std::map<int, Section> sections_in(const FileEntry& entry, const TensorFile& file, const std::string& name,
                                   const json& described) {
  std::map<int, Section> sections;
  if (entry.item.empty()) {
    sections[entry.rank] = {.tensors = tensors_under(file, name), .values = described.at("values")};
  } else if (!described.contains(kRanks)) {
    sections[entry.rank] = {.tensors = file.tensors, .values = described.at("values")};
  } else {
    for (const auto& [rank, values] : described.at(kRanks).items())
      sections[std::stoi(rank)] = {.tensors = tensors_under(file, rank), .values = values};
  }
  return sections;
}

// The begin of a file, as read_tensor_header() needs it. Throws Damaged.
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

Metadata metadata_of(const json& items) {
  // "format" says to Python's readers that the tensors are PyTorch's.
  return {{"format", "pt"}, {kOurMetadata, items.dump()}};
}

}  // namespace

NodeSections gather_sections(const std::vector<NamedItem>& items, int rank, comm::Communicator& node) {
  NodeSections of_node;
  for (const auto& [name, item] : items) {
    if (item->kind() != Item::Kind::per_node) continue;
    const Section mine = item->save();
    FileBuffer bytes;
    TensorCopies copies;
    copies.add(mine.tensors, metadata_of({{"rank", rank}, {"values", mine.values}}), bytes);
    copies.run();
    auto largest = static_cast<std::int64_t>(bytes.bytes().size());
    const comm::Buffer size = {&largest, 1, comm::DataType::i64};
    node.all_reduce(size, name, {.op = comm::ReduceOp::max})->wait();
    const auto stride = static_cast<std::size_t>(largest);
    std::vector<std::byte> all(stride * static_cast<std::size_t>(node.size()));
    const auto place = static_cast<std::size_t>(node.rank()) * stride;
    std::copy(bytes.bytes().begin(), bytes.bytes().end(), all.begin() + static_cast<std::ptrdiff_t>(place));
    node.all_gather({&all[place], stride, comm::DataType::u8}, all.data(), name)->wait();
    if (node.rank() != 0) continue;
    for (std::size_t at = 0; at < all.size(); at += stride) {
      const TensorFile file = read_tensor_file(std::span(all).subspan(at, stride));
      const json described = json::parse(file.metadata.at(kOurMetadata));
      Section& section = of_node[name][described.at("rank")];
      section.values = described.at("values");
      for (const NamedTensor& tensor : file.tensors)
        section.tensors.push_back({tensor.name, tensor.tensor.clone()});
    }
  }
  return of_node;
}

std::vector<OutgoingFile> snapshot(const std::vector<NamedItem>& items, int rank, const NodeSections& of_node,
                                   std::deque<FileBuffer>& buffers) {
  std::vector<OutgoingFile> files;
  TensorCopies copies;
  const auto add = [&](std::string file, std::string item, const std::vector<NamedTensor>& tensors,
                       const json& described, std::vector<int> ranks = {}) {
    if (files.size() == buffers.size()) buffers.emplace_back();
    FileBuffer& buffer = buffers[files.size()];
    copies.add(tensors, metadata_of(described), buffer);
    files.push_back({std::move(file), std::move(item), buffer.bytes(), std::move(ranks)});
  };
  std::vector<NamedTensor> small;
  json small_items = json::object();
  for (const auto& [name, item] : items) {
    if (const auto gathered = of_node.find(name); gathered != of_node.end()) {
      std::vector<NamedTensor> tensors;
      std::vector<int> ranks;
      json described = {{"type", item->type()}, {kRanks, json::object()}};
      for (const auto& [saver, section] : gathered->second) {
        const std::string number = std::to_string(saver);
        ranks.push_back(saver);
        described[kRanks][number] = section.values;
        for (const auto& tensor : section.tensors)
          tensors.push_back({tensor_name(number, tensor.name), tensor.tensor});
      }
      add(fmt::format("{}-{:05}.safetensors", name, rank), name, tensors, {{name, described}},
          std::move(ranks));
    }
    if (item->kind() == Item::Kind::per_node) continue;
    const bool per_rank = item->kind() == Item::Kind::per_rank;
    if (!per_rank && rank != 0) continue;
    Section section = item->save();
    const json described = description_of(*item, section);
    if (item->kind() == Item::Kind::small) {
      small_items[name] = described;
      for (auto& tensor : section.tensors)
        small.push_back({tensor_name(name, tensor.name), std::move(tensor.tensor)});
      continue;
    }
    add(per_rank ? fmt::format("{}-{:05}.safetensors", name, rank) : name + ".safetensors", name,
        section.tensors, {{name, described}});
  }
  if (!small_items.empty()) add(fmt::format("{}.safetensors", kSmallItems), "", small, small_items);
  copies.run();
  return files;
}

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

std::vector<std::size_t> first_files(const Manifest& manifest) {
  std::map<std::string, std::size_t> first;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const auto [known, added] = first.emplace(manifest.files[i].item, i);
    if (!added && manifest.files[i].rank < manifest.files[known->second].rank) known->second = i;
  }
  std::vector<std::size_t> numbers;
  for (const auto& [item, number] : first) numbers.push_back(number);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Headers read_headers(FileSystem& system, const Found& found, FileProgress& progress) {
  Headers headers{.manifest = found.manifest, .bytes = {}};
  for (const std::size_t number : first_files(found.manifest)) {
    const FileEntry& file = found.manifest.files[number];
    std::string& bytes = headers.bytes[number];
    if (file.item.empty()) {
      bytes.resize(file.bytes);
      read_file(system, found.folder, file, {{.offset = 0, .into = std::as_writable_bytes(std::span(bytes))}},
                progress);
    } else {
      read_file(system, found.folder, file, {}, progress);
      bytes = read_header(system, found.folder, file, progress);
    }
  }
  return headers;
}

std::map<std::string, SavedItem> saved_items(const Headers& headers) {
  std::map<std::string, SavedItem> saved;
  for (const auto& [number, header] : headers.bytes) {
    const FileEntry& entry = headers.manifest.files.at(number);
    try {
      const auto bytes = std::as_bytes(std::span(header));
      const TensorFile file =
          entry.item.empty() ? read_tensor_file(bytes) : read_tensor_header(bytes, entry.bytes);
      const auto items = json::parse(file.metadata.at(kOurMetadata));
      for (const auto& [name, described] : items.items())
        saved[name] = {.type = described.at("type"),
                       .section = sections_in(entry, file, name, described).begin()->second};
    } catch (const std::exception& error) {
      fail("{} cannot be read: {}", entry.name, error.what());
    }
  }
  return saved;
}

Section section_in(const FileEntry& entry, std::span<const std::byte> file, int rank) {
  try {
    const TensorFile read = read_tensor_file(file);
    const json items = json::parse(read.metadata.at(kOurMetadata));
    return sections_in(entry, read, entry.item, items.at(entry.item)).at(rank);
  } catch (const std::exception& error) {
    fail("{} cannot be read: {}", entry.name, error.what());
  }
}

void check_fit(const std::vector<NamedItem>& items, const std::map<std::string, SavedItem>& saved) {
  for (const auto& [name, item] : items) {
    const auto found = saved.find(name);
    if (found == saved.end()) fail("it has no '{}', which this program added", name);
    if (item->type() != found->second.type)
      fail("'{}' is of type {} in the checkpoint, but {} here", name, found->second.type, item->type());
    try {
      item->check(found->second.section);
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
