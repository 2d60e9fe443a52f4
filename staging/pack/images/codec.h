// Decodes PNG and JPEG. Decoded images are rows of pixels with a byte for each channel, a quarter of the size
// of floats. The first bytes of an image determine its format; its name does not.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "staging/pack/images/resample.h"

namespace lockstep::pack {

/// Channels of a decoded image: red, green, blue.
inline constexpr std::size_t kColours = 3;

/// Reads the size from the header. Throws Error if the image is neither PNG nor JPEG, or damaged.
PixelSize image_size(std::span<const std::byte> packed);

/// The size to which decode_image() decodes. A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, several times as fast:
/// the smallest size is chosen that is at least `at_least` in both directions. {0, 0}: the complete image.
PixelSize decoded_size(std::span<const std::byte> packed, PixelSize at_least);

/// Decodes to red, green and blue. Grey is copied to all three channels; transparency is blended with black. `pixels` must
/// have the bytes of decoded_size(). Throws Error if the image is damaged or cut short.
void decode_image(std::span<const std::byte> packed, std::span<std::uint8_t> pixels, PixelSize at_least = {});

/// Reads a PNG of one channel as the numbers that it stores, without conversion: grey values, or indices of its palette.
/// `numbers` has image_size() numbers of `bytes_of_number`: 1, or 2 in this machine's order of bytes. Throws Error if the
/// PNG has colours, or 16 bits and bytes_of_number is 1, or if it is damaged.
void decode_png_numbers(std::span<const std::byte> packed, std::span<std::uint8_t> numbers,
                        std::size_t bytes_of_number);

}  // namespace lockstep::pack
