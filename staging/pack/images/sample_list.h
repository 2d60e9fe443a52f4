// The samples of a pack, or of a folder whose files are not packed yet, in the order of the new pack.
//
// Threads: read() from any.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::pack {

struct SamplePart {
  std::string kind;
  std::vector<std::byte> bytes;
};

class SampleList {
 public:
  virtual ~SampleList() = default;
  virtual std::size_t size() const = 0;
  virtual std::string key(std::size_t sample) const = 0;
  /// Throws Error naming a file that cannot be read.
  virtual std::vector<SamplePart> read(std::size_t sample) const = 0;
};

/// Anything that open() reads, or else the files below a folder whose path or name matches one of the patterns.
std::unique_ptr<SampleList> list_samples(const std::filesystem::path& source,
                                         const std::vector<std::string>& filters);

}  // namespace lockstep::pack
