#include "staging/pack/images/codec.h"

// jpeglib.h does not compile before stdio.h.
// clang-format off
#include <cstdio>
#include <jerror.h>
#include <jpeglib.h>
// clang-format on

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>

#include "common/error.h"
#include "staging/pack/images/png_image.h"

namespace lockstep::pack {
namespace {

constexpr std::array<unsigned char, 8> kPng = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
constexpr std::array<unsigned char, 3> kJpeg = {0xff, 0xd8, 0xff};

template <std::size_t N>
bool begins_with(std::span<const std::byte> packed, const std::array<unsigned char, N>& magic) {
  return packed.size() >= N && std::memcmp(packed.data(), magic.data(), N) == 0;
}

std::size_t bytes_of(PixelSize size) {
  return size.height * size.width * kColours;
}

void check_size(PixelSize size, std::size_t bytes) {
  if (bytes != bytes_of(size))
    fail("an image of {} x {} needs {} bytes, not {}", size.height, size.width, bytes_of(size), bytes);
}

/// libjpeg reports errors by longjmp, so no object between setjmp and the call may have a destructor.
struct JpegErrors {
  jpeg_error_mgr manager;  // must be first: libjpeg has a pointer to it
  std::jmp_buf on_error;
  char message[JMSG_LENGTH_MAX];

  static void exit(j_common_ptr jpeg) {
    auto* const errors = reinterpret_cast<JpegErrors*>(jpeg->err);
    errors->manager.format_message(jpeg, errors->message);
    std::longjmp(errors->on_error, 1);
  }
  // Warnings are damage too, since libjpeg fills missing or wrong data with grey. The exceptions do not
  // affect pixels: extra bytes between two segments, and unknown versions of the JFIF and Adobe headers.
  static void emit(j_common_ptr jpeg, int level) {
    const int code = jpeg->err->msg_code;
    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_JFIF_MAJOR && code != JWRN_ADOBE_XFORM) {
      exit(jpeg);
    }
  }
};

// The largest divisor that libjpeg has for which both sides stay at least `at_least`.
unsigned divisor(const jpeg_decompress_struct& jpeg, PixelSize at_least) {
  if (at_least == PixelSize{}) return 1;
  for (const unsigned by : {8U, 4U, 2U}) {
    if ((jpeg.image_height + by - 1) / by >= at_least.height &&
        (jpeg.image_width + by - 1) / by >= at_least.width)
      return by;
  }
  return 1;
}

// a × b / 255, rounded as Pillow does.
unsigned product(unsigned a, unsigned b) {
  const unsigned scaled = a * b + 128;
  return ((scaled >> 8U) + scaled) >> 8U;
}

// From cyan, magenta, yellow and black as Adobe's programs store them, inverted: as Pillow does, with or without Adobe's
// marker.
void to_colours(const JSAMPLE* inks, std::size_t width, std::uint8_t* pixels) {
  for (std::size_t x = 0; x < width; ++x) {
    const unsigned black = inks[4 * x + 3];
    for (std::size_t c = 0; c < kColours; ++c)
      pixels[kColours * x + c] = static_cast<std::uint8_t>(black - product(255U - inks[4 * x + c], black));
  }
}

// Reads all rows. libjpeg owns the row of inks, since an error skips destructors.
void read_rows(jpeg_decompress_struct& jpeg, std::uint8_t* pixels) {
  const bool inks = jpeg.num_components == 4;
  jpeg.out_color_space = inks ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&jpeg);
  const std::size_t width = jpeg.output_width;
  JSAMPARRAY row_of_inks = nullptr;
  if (inks) {
    row_of_inks = jpeg.mem->alloc_sarray(reinterpret_cast<j_common_ptr>(&jpeg), JPOOL_IMAGE,
                                         static_cast<JDIMENSION>(4 * width), 1);
  }
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = pixels + jpeg.output_scanline * width * kColours;
    jpeg_read_scanlines(&jpeg, inks ? row_of_inks : &row, 1);
    if (inks) to_colours(row_of_inks[0], width, row);
  }
  jpeg_finish_decompress(&jpeg);
}

/// Reads the header, and the pixels if `pixels` has the size of the decoded image. Returns false on failure, with
/// errors.message set.
bool read_jpeg(std::span<const std::byte> packed, std::span<std::uint8_t> pixels, PixelSize at_least,
               PixelSize& size, JpegErrors& errors) {
  jpeg_decompress_struct jpeg{};
  jpeg.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = &JpegErrors::exit;
  errors.manager.emit_message = &JpegErrors::emit;
  if (setjmp(errors.on_error) != 0) {  // NOLINT(cert-err52-cpp): libjpeg requires it
    jpeg_destroy_decompress(&jpeg);
    return false;
  }
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(packed.data()), packed.size());
  jpeg_read_header(&jpeg, TRUE);
  jpeg.scale_denom = divisor(jpeg, at_least);
  jpeg_calc_output_dimensions(&jpeg);
  size = {jpeg.output_height, jpeg.output_width};
  if (pixels.size() == bytes_of(size)) read_rows(jpeg, pixels.data());
  jpeg_destroy_decompress(&jpeg);
  return true;
}

PixelSize jpeg(std::span<const std::byte> packed, std::span<std::uint8_t> pixels, PixelSize at_least) {
  PixelSize size;
  JpegErrors errors{};
  if (!read_jpeg(packed, pixels, at_least, size, errors)) fail("cannot decode JPEG: {}", errors.message);
  return size;
}

}  // namespace

PixelSize image_size(std::span<const std::byte> packed) {
  return decoded_size(packed, {});
}

PixelSize decoded_size(std::span<const std::byte> packed, PixelSize at_least) {
  if (begins_with(packed, kPng)) return png_size(packed);
  if (begins_with(packed, kJpeg)) return jpeg(packed, {}, at_least);
  fail("the image is neither PNG nor JPEG");
}

void decode_image(std::span<const std::byte> packed, std::span<std::uint8_t> pixels, PixelSize at_least) {
  if (begins_with(packed, kPng)) {
    const PixelSize size = png_size(packed);
    check_size(size, pixels.size());
    decode_png(packed, size, pixels);
  } else if (begins_with(packed, kJpeg)) {
    check_size(jpeg(packed, pixels, at_least), pixels.size());
  } else {
    fail("the image is neither PNG nor JPEG");
  }
}

}  // namespace lockstep::pack
