// Pictures packed as PNG or JPEG.
#pragma once

#include <png.h>

// jpeglib.h does not compile before stdio.h.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
// clang-format on

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace lockstep::testing {

/// A PNG of pixels, or with `colours` of indices of a palette.
inline std::string png_in_memory(const void* pixels, std::size_t height, std::size_t width,
                                 png_uint_32 format, unsigned colours = 0) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = format;
  image.colormap_entries = colours;
  std::string palette(3 * std::size_t{colours}, '\0');
  for (std::size_t i = 0; i < palette.size(); ++i) palette[i] = static_cast<char>(251 - 3 * i);
  png_alloc_size_t bytes = 0;
  png_image_write_to_memory(&image, nullptr, &bytes, 0, pixels, 0, palette.data());
  std::string packed(bytes, '\0');
  if (png_image_write_to_memory(&image, packed.data(), &bytes, 0, pixels, 0, palette.data()) == 0)
    throw std::runtime_error(image.message);
  packed.resize(bytes);
  return packed;
}

inline std::string jpeg_in_memory(const std::uint8_t* pixels, std::size_t height, std::size_t width,
                                  int channels = 3) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_mem_dest(&jpeg, &memory, &bytes);
  jpeg.image_width = static_cast<JDIMENSION>(width);
  jpeg.image_height = static_cast<JDIMENSION>(height);
  jpeg.input_components = channels;
  jpeg.in_color_space = channels == 3 ? JCS_RGB : channels == 4 ? JCS_CMYK : JCS_GRAYSCALE;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 98, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row =
        const_cast<std::uint8_t*>(pixels) + jpeg.next_scanline * width * static_cast<std::size_t>(channels);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  std::string packed(reinterpret_cast<const char*>(memory), bytes);
  std::free(memory);
  return packed;
}

}  // namespace lockstep::testing
