// Reads files of a checkpoint once on each node, and gives them to the ranks of the node that need them.
//
// Threads: the training thread; all ranks make the same calls.
#pragma once

#include <filesystem>

#include "common/file_system.h"
#include "runtime/comm/communicator.h"
#include "runtime/train/checkpoint/file_progress.h"
#include "runtime/train/checkpoint/manifest.h"
#include "runtime/train/checkpoint/tensor_file.h"

namespace lockstep::checkpoint {

class NodeReader {
 public:
  /// `node`: the ranks of this node. The arguments must outlive this object.
  NodeReader(comm::Communicator& node, FileSystem& system, FileProgress& progress)
      : system_(system), progress_(progress), ranks_(node) {}

  /// Gives the file to the ranks of this node for which `needed` is true; does not read it if there is none. Throws
  /// Error on all ranks of the node if the file cannot be read or differs from the manifest.
  void read(const std::filesystem::path& folder, const FileEntry& file, bool needed, FileBuffer& into);

 private:
  FileSystem& system_;
  FileProgress& progress_;
  comm::Communicator& ranks_;
};

}  // namespace lockstep::checkpoint
