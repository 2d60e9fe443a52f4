// Decodes PNG and JPEG images to raw pixels, which travel to the device as one byte per channel, a quarter
// of the size of floats. The first bytes of an image determine its format; its name does not.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/data/batch/image_batch.h"

namespace lockstep::data {

/// Reads the size from the header. Throws Error if the image is neither PNG nor JPEG, or damaged.
ImageSize image_size(std::span<const std::byte> packed);

/// Decodes to rows of red, green and blue. Grey is copied to all three channels; transparency is blended
/// with black. `pixels` must have exactly image_size().bytes() bytes. Throws Error if the image is damaged
/// or cut short.
void decode_image(std::span<const std::byte> packed, std::span<std::uint8_t> pixels);

}  // namespace lockstep::data
