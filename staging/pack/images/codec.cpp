#include "staging/pack/images/codec.h"

#include <png.h>

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

/// libpng's simplified interface. It stores its error in the struct.
class Png {
 public:
  explicit Png(std::span<const std::byte> packed) {
    image_.version = PNG_IMAGE_VERSION;
    if (png_image_begin_read_from_memory(&image_, packed.data(), packed.size()) == 0) fail_png();
  }
  ~Png() { png_image_free(&image_); }
  Png(const Png&) = delete;
  Png& operator=(const Png&) = delete;

  PixelSize size() const { return {image_.height, image_.width}; }

  void decode(std::span<std::uint8_t> pixels) {
    image_.format = PNG_FORMAT_RGB;
    const png_color black{0, 0, 0};
    if (png_image_finish_read(&image_, &black, pixels.data(), 0, nullptr) == 0) fail_png();
    // Warnings do not concern pixels, but a wrong colour profile, text or time. Missing pixels and wrong
    // checksums are errors.
    if (PNG_IMAGE_FAILED(image_)) fail_png();
  }

 private:
  [[noreturn]] void fail_png() const { fail("cannot decode PNG: {}", image_.message); }

  png_image image_{};
};

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
  if (pixels.size() == bytes_of(size)) {
    jpeg.out_color_space = JCS_RGB;
    jpeg_start_decompress(&jpeg);
    while (jpeg.output_scanline < jpeg.output_height) {
      JSAMPROW row = pixels.data() + jpeg.output_scanline * size.width * kColours;
      jpeg_read_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_decompress(&jpeg);
  }
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
  if (begins_with(packed, kPng)) return Png(packed).size();
  if (begins_with(packed, kJpeg)) return jpeg(packed, {}, at_least);
  fail("the image is neither PNG nor JPEG");
}

void decode_image(std::span<const std::byte> packed, std::span<std::uint8_t> pixels, PixelSize at_least) {
  if (begins_with(packed, kPng)) {
    Png png(packed);
    check_size(png.size(), pixels.size());
    png.decode(pixels);
  } else if (begins_with(packed, kJpeg)) {
    check_size(jpeg(packed, pixels, at_least), pixels.size());
  } else {
    fail("the image is neither PNG nor JPEG");
  }
}

}  // namespace lockstep::pack
