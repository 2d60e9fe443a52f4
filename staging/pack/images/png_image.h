// Decodes PNG. Colours are the numbers that the file stores: neither gAMA nor a profile changes them, and
// transparency is ignored. That is what Pillow's convert("RGB") does, except for grey of 16 bits and for pixels whose
// colour the palette does not have, which versions of Pillow show differently.
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

/// Reads the size from the header. Throws Error if it is damaged.
PixelSize png_size(std::span<const std::byte> packed);

/// Decodes to red, green and blue. Of 16 bits the high byte is taken. `size` is that of png_size(), and `pixels`
/// must have 3 bytes for each pixel. Throws Error if the image is damaged or cut short, or if a pixel has a colour that the
/// palette does not have.
void decode_png(std::span<const std::byte> packed, PixelSize size, std::span<std::uint8_t> pixels);

/// Reads a PNG of one channel as the numbers that it stores, without conversion: grey values, or indices of its palette.
/// `numbers` has png_size() numbers of `bytes_of_number`: 1, or 2 in this machine's order of bytes. Throws Error if the
/// PNG has colours, or 16 bits and bytes_of_number is 1, or if it is damaged.
void decode_png_numbers(std::span<const std::byte> packed, std::span<std::uint8_t> numbers,
                        std::size_t bytes_of_number);

}  // namespace lockstep::pack
