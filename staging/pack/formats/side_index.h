// The index of a data file whose format has no table of its records. It is an index of one shard (index.h),
// made in one pass over the file and stored, so that the next job does not have to read the file again.
//
// It is stored beside the data (".NAME.lockstep"); if that is not allowed, in $XDG_CACHE_HOME/lockstep/index (by
// default ~/.cache/lockstep/index), or else kept in memory. It contains a digest of the file's state: size,
// modification time, first and last 4 KiB. If the state differs or the index is damaged, the index is made again. A
// file that lost its last records but is otherwise unchanged is refused. Staging copies the index with the data and
// gives the copied data file the time of the original.
//
// Threads: const members are safe from any thread. If several processes need the same index, one makes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "staging/pack/format.h"
#include "staging/pack/formats/data_file.h"
#include "staging/pack/index.h"

namespace lockstep::pack {

/// Whether a format needs such an index.
bool has_side_index(Format format);

/// The path of the index beside a file, which need not exist.
std::filesystem::path side_index_of(const std::filesystem::path& file);

/// Whether a file is an undamaged index of data with this size. Whether it belongs to a certain file is
/// checked when that file is opened.
bool is_side_index_for(const std::filesystem::path& index, std::uint64_t data_bytes);

class SideIndex {
 public:
  /// Loads or makes the index of `file`. `scan` adds the samples in the order of the data; `also` is a text
  /// for everything else that the index depends on. Throws the exceptions of `scan`, and Error if there are
  /// no samples or if the file lost its last records since it was indexed.
  SideIndex(const DataFile& file, std::string_view also, const std::function<void(IndexBuilder&)>& scan);

  const Index& operator*() const { return index_; }
  const Index* operator->() const { return &index_; }

  /// False if it could not be stored anywhere.
  bool stored() const { return memory_.empty(); }
  /// Whether this object made it.
  bool made() const { return made_; }

 private:
  bool load(const std::filesystem::path& path, const DataFile& file, const Digest& state);
  void make(const DataFile& file, const Digest& state, const std::function<void(IndexBuilder&)>& scan,
            bool locked);
  /// Where it may be kept, in the order of preference.
  static std::vector<std::filesystem::path> places(const DataFile& file, const Digest& state);

  std::vector<std::uint64_t> memory_;  ///< its bytes, if it could not be stored
  Index index_;
  bool made_ = false;
};

}  // namespace lockstep::pack
