// Makes packs with smaller images out of a folder of image files or of another pack: one for each size, in one pass over
// the source. The new packs appear under their names when all are complete and synced; a call that is stopped keeps
// nothing.
//
// Threads: safe from any thread and process; of two calls for the same target the second is refused.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "staging/pack/images/image_recipe.h"

namespace lockstep::pack {

struct ImagePackingOptions {
  std::filesystem::path source;      ///< as list_samples()
  std::vector<std::string> filters;  ///< as list_samples()
  std::filesystem::path out;         ///< a new folder
  ImageRecipe recipe;
  /// Each makes a pack with recipe.resize = size, named `out`-SIZE if there are several. Empty: one pack, as `recipe` says.
  std::vector<std::size_t> sizes;
  /// The kind of the parts to make smaller. "": the only image of each sample. Other parts are copied.
  std::string kind;
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;  ///< as for create()
  int threads = 0;                                       ///< that decode and encode; 0: one for each CPU
  std::function<void(std::size_t done, std::size_t samples)> progress;
  const std::atomic<bool>* stop = nullptr;  ///< once true, the call ends with Stopped (packing.h)
  FileSystem* system = nullptr;             ///< all files are written through it
};

struct ImagePackingResult {
  struct Pack {
    std::filesystem::path out;
    std::size_t shards = 0;
    std::uint64_t payload_bytes = 0;  ///< of all parts in the pack
  };

  std::size_t samples = 0;  ///< in each pack
  std::size_t images = 0;
  std::uint64_t source_bytes = 0;  ///< of all parts
  std::vector<Pack> packs{};       ///< in the order of `sizes`
};

/// Throws UsageError if a size is there twice, and Error naming a sample whose image cannot be made smaller, that has no
/// image, or that has several while `kind` is "".
/// Memory: 64 finished samples of each size for each thread, and one decoded image in each thread.
ImagePackingResult pack_images(const ImagePackingOptions& options);

}  // namespace lockstep::pack
