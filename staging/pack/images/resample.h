// Scales images of one byte per channel.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::pack {

/// In pixels.
struct PixelSize {
  std::size_t height = 0;
  std::size_t width = 0;

  bool operator==(const PixelSize&) const = default;
};

/// A rectangle in an image.
struct PixelBox {
  std::size_t top = 0;
  std::size_t left = 0;
  PixelSize size;
};

/// Scales a part of an image to another size, first in height, which is contiguous memory, then in width. The weights of
/// the pixels that make up a scaled one form a triangle, which becomes wider to shrink, so that no pixel is ignored. Throws
/// UsageError if the box is not in the image or a span does not have the size that its dimensions require.
void crop_and_resample(std::span<const std::uint8_t> from, PixelSize size, std::size_t channels,
                       const PixelBox& box, std::span<std::uint8_t> to, PixelSize to_size);

}  // namespace lockstep::pack
