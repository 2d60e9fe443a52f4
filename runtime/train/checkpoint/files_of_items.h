// Assigns the items of a checkpoint to files: a file for each module and optimizer (of each rank if it is sharded), and
// one file, state.safetensors, for all small items.
//
// Threads: the training thread.
#pragma once

#include <deque>
#include <map>
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

/// The sections of each item in a checkpoint.
struct SavedItem {
  std::string type;
  std::vector<Section> ranks;
};
/// The sections are views of the contents. Throws Error if a file cannot be understood.
std::map<std::string, SavedItem> saved_items(const Contents& contents);

/// Throws Error naming the first item that cannot load its state; changes nothing.
void check_fit(const std::vector<NamedItem>& items, const std::map<std::string, SavedItem>& saved);

}  // namespace lockstep::checkpoint
