#include "staging/pack/images/png_image.h"

#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>

#include "common/error.h"

namespace lockstep::pack {
namespace {

/// libpng reports errors by longjmp, so no object between setjmp and the call may have a destructor.
struct PngInput {
  std::span<const std::byte> left;
  std::array<char, 256> message{};

  static void read(png_structp png, png_bytep into, std::size_t bytes) {
    auto* const input = static_cast<PngInput*>(png_get_io_ptr(png));
    if (bytes > input->left.size()) png_error(png, "it ends too early");
    std::memcpy(into, input->left.data(), bytes);
    input->left = input->left.subspan(bytes);
  }
  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    auto* const input = static_cast<PngInput*>(png_get_error_ptr(png));
    std::strncpy(input->message.data(), message, input->message.size() - 1);
    png_longjmp(png, 1);
  }
  static void ignore(png_structp /*png*/, png_const_charp /*warning*/) {}
};

struct PngHeader {
  PixelSize size;
  int depth = 0;
  int channels = 0;
  std::array<png_color, PNG_MAX_PALETTE_LENGTH> palette{};
  int colours = 0;  ///< of the palette; 0 if the pixels have none
};

enum class As { numbers, colours };

void set_transformations(png_structp png, png_infop info, As as) {
  const int type = png_get_color_type(png, info);
  if (as == As::numbers || type == PNG_COLOR_TYPE_PALETTE) {
    png_set_packing(png);  // a byte for each number of 1, 2 or 4 bits
    png_set_swap(png);     // PNG stores the high byte first
    return;
  }
  png_set_strip_16(png);
  if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
  if ((type & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
}

void read_palette(png_structp png, png_infop info, PngHeader& header) {
  png_colorp palette = nullptr;
  if (png_get_color_type(png, info) != PNG_COLOR_TYPE_PALETTE ||
      png_get_PLTE(png, info, &palette, &header.colours) == 0)
    return;
  std::copy_n(palette, header.colours, header.palette.begin());
}

/// Reads the header, then the rows to the end of `pixels`, if it is not empty: colours, or, if the PNG has a palette,
/// their indices. Returns false on failure, with input.message set.
bool read_png(PngInput& input, PngHeader& header, std::span<std::uint8_t> pixels, As as) {
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &input, &PngInput::fail, &PngInput::ignore);
  png_infop info = png != nullptr ? png_create_info_struct(png) : nullptr;
  if (info == nullptr) {
    png_destroy_read_struct(&png, nullptr, nullptr);
    return false;
  }
  if (setjmp(png_jmpbuf(png)) != 0) {  // NOLINT(cert-err52-cpp): libpng requires it
    png_destroy_read_struct(&png, &info, nullptr);
    return false;
  }
  png_set_benign_errors(png, 1);  // they do not concern pixels, but a profile, text or time
  png_set_read_fn(png, &input, &PngInput::read);
  png_read_info(png, info);
  header = {.size = {png_get_image_height(png, info), png_get_image_width(png, info)},
            .depth = png_get_bit_depth(png, info),
            .channels = png_get_channels(png, info)};
  read_palette(png, info, header);
  if (!pixels.empty()) {
    set_transformations(png, info, as);
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    const std::size_t row = png_get_rowbytes(png, info);
    for (int pass = 0; pass < passes; ++pass) {
      for (std::size_t y = header.size.height; y > 0; --y)
        png_read_row(png, pixels.data() + pixels.size() - y * row, nullptr);
    }
    if (as == As::numbers) png_read_end(png, nullptr);
  }
  png_destroy_read_struct(&png, &info, nullptr);
  return true;
}

PngHeader read(std::span<const std::byte> packed, std::span<std::uint8_t> pixels, As as) {
  PngInput input{.left = packed};
  PngHeader header;
  if (!read_png(input, header, pixels, as)) fail("cannot decode PNG: {}", input.message.data());
  return header;
}

}  // namespace

PixelSize png_size(std::span<const std::byte> packed) {
  return read(packed, {}, As::colours).size;
}

void decode_png(std::span<const std::byte> packed, PixelSize size, std::span<std::uint8_t> pixels) {
  const PngHeader header = read(packed, pixels, As::colours);
  if (header.colours == 0) return;
  const std::size_t count = size.height * size.width;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t index = pixels[2 * count + i];
    if (index >= header.colours)
      fail("cannot decode PNG: pixel {} has the colour {} of a palette of {}", i, index, header.colours);
    const png_color& colour = header.palette.at(index);
    pixels[3 * i] = colour.red;
    pixels[3 * i + 1] = colour.green;
    pixels[3 * i + 2] = colour.blue;
  }
}

void decode_png_numbers(std::span<const std::byte> packed, std::span<std::uint8_t> numbers,
                        std::size_t bytes_of_number) {
  const PngHeader header = read(packed, {}, As::numbers);
  if (header.channels != 1) {
    fail("the PNG has {} channels: numbers need one, grey or with a palette", header.channels);
  }
  const std::size_t stored = header.depth == 16 ? 2 : 1;
  if (stored > bytes_of_number) fail("the PNG has numbers of 16 bits: read it as int16");
  const std::size_t count = header.size.height * header.size.width;
  if (numbers.size() != count * bytes_of_number) {
    fail("a PNG of {} x {} needs {} bytes, not {}", header.size.height, header.size.width,
         count * bytes_of_number, numbers.size());
  }
  // At the end, so that narrow numbers can be widened in place.
  read(packed, numbers, As::numbers);
  const std::uint8_t* const begin = numbers.data() + numbers.size() - count * stored;
  if (stored == bytes_of_number) return;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t number = begin[i];
    std::memcpy(numbers.data() + i * sizeof number, &number, sizeof number);
  }
}

}  // namespace lockstep::pack
