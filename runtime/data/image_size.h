// The size of an image.
//
// Threads: values.
#pragma once

#include <cstddef>

namespace lockstep::data {

struct ImageSize {
  std::size_t height = 0;
  std::size_t width = 0;

  /// The size of the decoded RGB image.
  std::size_t bytes() const { return height * width * kChannels; }
  static constexpr std::size_t kChannels = 3;

  bool operator==(const ImageSize&) const = default;
};

}  // namespace lockstep::data
