// Assigns the items of a checkpoint to files: a file for each module and optimizer (of each rank if it is sharded), a file
// of each node for what is small and differs by rank, and one file, state.safetensors, for all other small items. Reads them.
//
// Threads: the training thread; ItemFiles is safe from any.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "runtime/comm/communicator.h"
#include "runtime/train/checkpoint/file_progress.h"
#include "runtime/train/checkpoint/items.h"
#include "runtime/train/checkpoint/manifest.h"
#include "runtime/train/checkpoint/reader.h"
#include "runtime/train/checkpoint/tensor_file.h"
#include "runtime/train/checkpoint/writer.h"

namespace lockstep::checkpoint {

struct NamedItem {
  std::string name;
  ItemPointer item;
};

/// The sections of a node's ranks, by the items of the kind per_node.
using NodeSections = std::map<std::string, std::map<int, Section>>;
/// Gathers them on the first rank of the node; empty on the others. All ranks of the node (`node`) make the call
/// together; `rank` is the number among all ranks. The tensors are on the CPU.
NodeSections gather_sections(const std::vector<NamedItem>& items, int rank, comm::Communicator& node);

/// Copies the state of the items that this rank writes into the buffers, one for each file. More buffers are
/// added as needed; the files stay in them until the next call.
std::vector<OutgoingFile> snapshot(const std::vector<NamedItem>& items, int rank, const NodeSections& of_node,
                                   std::deque<FileBuffer>& buffers);

/// The files of one item in a checkpoint, by the ranks whose state they have.
class ItemFiles {
 public:
  /// The references must outlive this object. Throws Damaged if the state of a rank is missing.
  ItemFiles(FileSystem& system, std::filesystem::path checkpoint, const Manifest& manifest,
            const std::string& item, FileProgress& progress);

  /// The number of ranks that saved.
  int ranks() const { return static_cast<int>(by_rank_.size()); }
  const FileEntry& of_rank(int rank) const { return *by_rank_.at(static_cast<std::size_t>(rank)); }

  /// The tensors have no memory. Throws Damaged.
  TensorFile header(const FileEntry& file) const;
  /// As read_file().
  void read(const FileEntry& file, std::vector<FilePart> parts) const;
  /// The whole file.
  void read(const FileEntry& file, FileBuffer& into) const;

 private:
  FileSystem& system_;
  std::filesystem::path checkpoint_;
  FileProgress& progress_;
  std::vector<const FileEntry*> by_rank_;
};

/// The values of an item in the description that a file carries. Throws nlohmann::json::exception.
nlohmann::json section_values(const TensorFile& file, const std::string& item);

/// A checkpoint as all ranks know it before they load: the headers of the first file of each item, and the whole file of
/// the small items.
struct Headers {
  Manifest manifest;
  std::map<std::size_t, std::string> bytes;  ///< by the number of the file in the manifest
};
/// The files that Headers has.
std::vector<std::size_t> first_files(const Manifest& manifest);
/// Verifies these files. Throws Damaged, or Error if a file cannot be read.
Headers read_headers(FileSystem& system, const Found& found, FileProgress& progress);

/// An item in a checkpoint.
struct SavedItem {
  std::string type;
  Section section;  ///< of the first rank
};
/// The tensors of large items have no memory; those of small items are views of the headers. Throws Error if a file
/// cannot be understood.
std::map<std::string, SavedItem> saved_items(const Headers& headers);

/// The section of a rank in a file of an item that has files of its own. Its tensors are views of the file.
Section section_in(const FileEntry& entry, std::span<const std::byte> file, int rank);

/// Throws Error naming the first item that cannot load its state; changes nothing.
void check_fit(const std::vector<NamedItem>& items, const std::map<std::string, SavedItem>& saved);

}  // namespace lockstep::checkpoint
