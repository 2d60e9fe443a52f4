// Reads the orientation that a camera stores beside a picture.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::pack {

/// Returns the orientation in the EXIF data of a JPEG or PNG: 1 (upright, as stored) to 8; 1 if there is none.
int exif_orientation(std::span<const std::byte> packed);

}  // namespace lockstep::pack
