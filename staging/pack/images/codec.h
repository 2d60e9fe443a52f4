// Decodes PNG and JPEG. Decoded images are rows of pixels with a byte for each channel, a quarter of the size
// of floats. The first bytes of an image determine its format; its name does not.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "staging/pack/images/png_image.h"
#include "staging/pack/images/resample.h"

namespace lockstep::pack {

/// Reads the size from the header. Throws Error if the image is neither PNG nor JPEG, or damaged.
PixelSize image_size(std::span<const std::byte> packed);

/// The size to which decode_image() decodes. A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, several times as fast:
/// the smallest size is chosen that is at least `at_least` in both directions. {0, 0}: the complete image.
PixelSize decoded_size(std::span<const std::byte> packed, PixelSize at_least);

/// Decodes to red, green and blue, as Pillow's convert("RGB"): grey is copied to all three channels, transparency and gamma
/// are ignored, and of 16 bits the high byte is taken, also of grey, which Pillow cuts off at 255. `pixels` must have the
/// bytes of decoded_size(). Throws Error if the image is damaged or cut short.
void decode_image(std::span<const std::byte> packed, std::span<std::uint8_t> pixels, PixelSize at_least = {});

}  // namespace lockstep::pack
