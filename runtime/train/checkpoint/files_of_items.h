// Assigns the items of a checkpoint to files: a file for each module and optimizer (of each rank if it is sharded), and
// one file, state.safetensors, for all small items.
//
// Threads: the training thread.
#pragma once

#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/train/checkpoint/items.h"
#include "runtime/train/checkpoint/reader.h"
#include "runtime/train/checkpoint/tensor_file.h"
#include "runtime/train/checkpoint/writer.h"

namespace lockstep::checkpoint {

struct NamedItem {
  std::string name;
  ItemPointer item;
};

/// Copies the state of the items that this rank writes into the buffers, one for each file. More buffers are
/// added as needed; the files stay in them until the next call.
std::vector<OutgoingFile> snapshot(const std::vector<NamedItem>& items, int rank,
                                   std::deque<FileBuffer>& buffers);

/// A checkpoint as all ranks know it before they load: the header of each file, but the whole file of the small items.
struct Headers {
  Manifest manifest;
  std::vector<std::string> bytes;  ///< by file, as in the manifest
};
/// Throws Error if a file cannot be read.
Headers read_headers(FileSystem& system, const Found& found, FileProgress& progress);

/// The sections of each item in a checkpoint.
struct SavedItem {
  std::string type;
  std::vector<Section> ranks;
  std::vector<std::size_t> files;  ///< of the sections; of small items the same file
};
/// The tensors of large items have no memory; those of small items are views of the headers. Throws Error if a file
/// cannot be understood.
std::map<std::string, SavedItem> saved_items(const Headers& headers);

/// The section in a file of a large item. Its tensors are views of the file.
Section section_in(const FileEntry& entry, std::span<const std::byte> file);

/// Throws Error naming the first item that cannot load its state; changes nothing.
void check_fit(const std::vector<NamedItem>& items, const std::map<std::string, SavedItem>& saved);

}  // namespace lockstep::checkpoint
