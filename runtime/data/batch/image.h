// Images as they are packed, PNG and JPEG, to the raw pixels that travel to the device: one byte per channel,
// a quarter of what floats take. Which of the two it is, the first bytes say, not a name.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/data/image_size.h"

namespace lockstep::data {

/// From the header alone. Throws Error when it is neither PNG nor JPEG, or damaged.
ImageSize image_size(std::span<const std::byte> packed);

/// Decodes to rows of red, green and blue; grey becomes all three, transparency is blended with black.
/// `pixels` has exactly image_size().bytes() bytes. Throws Error when the image is damaged or cut short.
void decode_image(std::span<const std::byte> packed, std::span<std::uint8_t> pixels);

}  // namespace lockstep::data
