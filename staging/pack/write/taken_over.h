// How much of what an earlier call has packed is what this one would pack.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <string>

#include "staging/pack/write/file_packing.h"

namespace lockstep::pack {

struct TakenOver {
  std::size_t shards = 0;
  std::size_t files = 0;  ///< in them
  std::string changed;    ///< why not more: the first file that is not as it was, or ""
};

/// The leading shards of the journal that hold exactly the first files of the list, with the sizes and times
/// that they still have, and that would end where they do. Looks at each of these files with several threads.
TakenOver take_over(const PackingOptions& options, const Destination& destination, const Journal& journal,
                    FileSystem& system);

}  // namespace lockstep::pack
