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
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/error.h"

namespace lockstep::pack {
namespace {

constexpr std::array<unsigned char, 8> kPng = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
constexpr std::array<unsigned char, 3> kJpeg = {0xff, 0xd8, 0xff};

template <std::size_t N>
bool begins_with(std::span<const std::byte> packed, const std::array<unsigned char, N>& magic) {
  return packed.size() >= N && std::memcmp(packed.data(), magic.data(), N) == 0;
}

std::size_t bytes_of(PixelSize size, std::size_t channels = kColours) {
  return size.height * size.width * channels;
}

void check_size(PixelSize size, std::size_t channels, std::size_t bytes) {
  if (bytes != bytes_of(size, channels)) {
    fail("an image of {} x {} needs {} bytes, not {}", size.height, size.width, bytes_of(size, channels),
         bytes);
  }
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

/// Returns false on failure, with errors.message set; otherwise the caller frees `memory`.
bool write_jpeg(std::span<const std::uint8_t> pixels, PixelSize size, std::size_t channels, int quality,
                unsigned char*& memory, unsigned long& bytes,
                JpegErrors& errors) {  // NOLINT(google-runtime-int)
  jpeg_compress_struct jpeg{};
  jpeg.err = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = &JpegErrors::exit;
  if (setjmp(errors.on_error) != 0) {  // NOLINT(cert-err52-cpp): libjpeg requires it
    jpeg_destroy_compress(&jpeg);
    return false;
  }
  jpeg_create_compress(&jpeg);
  jpeg_mem_dest(&jpeg, &memory, &bytes);
  jpeg.image_height = static_cast<JDIMENSION>(size.height);
  jpeg.image_width = static_cast<JDIMENSION>(size.width);
  jpeg.input_components = static_cast<int>(channels);
  jpeg.in_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, quality, TRUE);
  jpeg.optimize_coding = TRUE;  // a few percent smaller
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<JSAMPROW>(pixels.data() + jpeg.next_scanline * size.width * channels);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  return true;
}

}  // namespace

bool is_image(std::span<const std::byte> packed) {
  return begins_with(packed, kPng) || begins_with(packed, kJpeg);
}

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
    check_size(png.size(), kColours, pixels.size());
    png.decode(pixels);
  } else if (begins_with(packed, kJpeg)) {
    check_size(jpeg(packed, pixels, at_least), kColours, pixels.size());
  } else {
    fail("the image is neither PNG nor JPEG");
  }
}

std::vector<std::byte> encode_jpeg(std::span<const std::uint8_t> pixels, PixelSize size, std::size_t channels,
                                   int quality) {
  check_size(size, channels, pixels.size());
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;  // NOLINT(google-runtime-int): libjpeg's type
  JpegErrors errors{};
  // After a failure, which means that no memory is left, `memory` may already be freed.
  if (!write_jpeg(pixels, size, channels, quality, memory, bytes, errors))
    fail("cannot encode JPEG: {}", errors.message);
  const std::unique_ptr<unsigned char, void (*)(void*)> owner(memory, std::free);
  const auto* const begin = reinterpret_cast<const std::byte*>(memory);
  return {begin, begin + bytes};
}

std::vector<std::byte> encode_png(std::span<const std::uint8_t> pixels, PixelSize size,
                                  std::size_t channels) {
  check_size(size, channels, pixels.size());
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(size.height);
  image.width = static_cast<png_uint_32>(size.width);
  image.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<std::byte> packed(bytes);
  if (png_image_write_to_memory(&image, packed.data(), &bytes, 0, pixels.data(), 0, nullptr) == 0)
    fail("cannot encode PNG: {}", image.message);
  packed.resize(bytes);
  return packed;
}

}  // namespace lockstep::pack
