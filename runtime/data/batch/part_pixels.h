// Decodes the part of a sample that holds its image or its dense target.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/batch/image_batch.h"

namespace lockstep::data {

/// What the pixels of a batch are, and those of the parts that they come from.
struct PixelFormat {
  ImageSize size;  ///< in the batch
  ImageSize raw;   ///< of raw pixels
  std::size_t channels = ImageSize::kChannels;
  PixelType type = PixelType::uint8;
  bool numbers = false;  ///< a PNG holds numbers instead of colours, as a target does
  std::size_t max_pixels = 0;
  ImageSize decode_at_least = {};

  std::size_t bytes_of_pixel() const { return channels * bytes_of(type); }
  std::size_t bytes() const { return size.pixels() * bytes_of_pixel(); }
};

struct PartPixels {
  std::span<const std::uint8_t> pixels;
  ImageSize size;
};

/// Without a transform the part must have the batch's size: its pixels are written to `out`. For a transform they are
/// left in `packed` or decoded to `memory`. `kind` is for errors.
PartPixels pixels_of_part(std::string_view kind, std::span<const std::byte> packed, const PixelFormat& format,
                          bool for_transform, std::span<std::uint8_t> out, std::vector<std::uint8_t>& memory);

/// Whether the part is compressed, and with `decode_at_least` would be decoded to fewer pixels.
bool decodes_smaller(std::string_view kind, std::span<const std::byte> packed, const PixelFormat& format,
                     const ImageSize& decode_at_least);

/// The orientation in the EXIF data of a compressed part, 1 to 8; 1: upright, or none.
int stored_orientation(std::string_view kind, std::span<const std::byte> packed, const PixelFormat& format);

/// "12 x 10", or "8 x 12 x 10" for a volume.
std::string text_of(const ImageSize& size);

}  // namespace lockstep::data
