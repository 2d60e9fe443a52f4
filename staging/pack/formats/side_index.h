// Where the records of a file lie, for formats that do not say so themselves: an index of one shard
// (index.h), made in one pass over the file and kept, so that the next job does not read everything again.
//
// It is kept beside the data (".NAME.lockstep"), or where that is not allowed in
// $XDG_CACHE_HOME/lockstep/index (by default ~/.cache), or else in memory. It holds what the file looked
// like: size, time of the last change, first and last 4 KiB. When any of that differs, or the index is
// damaged, it is made anew; a file whose last records are missing, and of which nothing else changed, is
// refused as long as the index is beside it. Staging copies it with the data and gives the copy the data's
// time.
//
// Threads: const members are safe from any thread. Of several processes that want the same index one makes
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "staging/pack/format.h"
#include "staging/pack/formats/data_file.h"
#include "staging/pack/index.h"
#include "staging/pack/index_builder.h"

namespace lockstep::pack {

/// Whether files of a format are read through such an index.
bool has_side_index(Format format);

/// Where the index beside a file lies, whether there is one or not.
std::filesystem::path side_index_of(const std::filesystem::path& file);

/// Whether a file is such an index, undamaged, of data of so many bytes. Whether it is of this very data is
/// known when that is opened.
bool is_side_index_for(const std::filesystem::path& index, std::uint64_t data_bytes);

class SideIndex {
 public:
  /// Loads or makes the index of `file`. `scan` adds the samples in the order of the data; `also` is what
  /// else the index depends on, in words. Throws whatever `scan` throws, and Error where there are no
  /// samples, or only the first ones of those that the index beside the file knew.
  SideIndex(const DataFile& file, std::string_view also, const std::function<void(IndexBuilder&)>& scan);

  const Index& operator*() const { return index_; }
  const Index* operator->() const { return &index_; }

  /// False where it could be stored nowhere.
  bool stored() const { return memory_.empty(); }
  /// Whether this object made it.
  bool made() const { return made_; }

 private:
  bool load(const std::filesystem::path& path, const DataFile& file, const Digest& state);
  void make(const DataFile& file, const Digest& state, const std::function<void(IndexBuilder&)>& scan,
            bool locked);
  /// Where it may be kept, the best first.
  static std::vector<std::filesystem::path> places(const DataFile& file, const Digest& state);

  std::vector<std::uint64_t> memory_;  ///< its bytes where it could not be stored
  Index index_;
  bool made_ = false;
};

}  // namespace lockstep::pack
