#include "staging/pack/images/png_image.h"

#include <png.h>

#include <array>
#include <csetjmp>
#include <cstring>
#include <vector>

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
};

enum class As { numbers, colours };

void set_transformations(png_structp png, png_infop info, As as) {
  if (as == As::numbers) {
    png_set_packing(png);  // a byte for each number of 1, 2 or 4 bits
    png_set_swap(png);     // PNG stores the high byte first
    return;
  }
  png_set_strip_16(png);
  const int type = png_get_color_type(png, info);
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
  if ((type & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
}

/// Reads the header, then the rows if `rows` is not null. Returns false on failure, with input.message set.
bool read_png(PngInput& input, PngHeader& header, png_bytep* rows, As as) {
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
  if (rows != nullptr) {
    set_transformations(png, info, as);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    png_read_image(png, rows);
    if (as == As::numbers) png_read_end(png, nullptr);
  }
  png_destroy_read_struct(&png, &info, nullptr);
  return true;
}

PngHeader read(std::span<const std::byte> packed, png_bytep* rows, As as) {
  PngInput input{.left = packed};
  PngHeader header;
  if (!read_png(input, header, rows, as)) fail("cannot decode PNG: {}", input.message.data());
  return header;
}

/// The rows of pixels of `pixel_bytes`.
std::vector<png_bytep> rows_at(std::uint8_t* begin, PixelSize size, std::size_t pixel_bytes) {
  std::vector<png_bytep> rows(size.height);
  for (std::size_t y = 0; y < rows.size(); ++y) rows[y] = begin + y * size.width * pixel_bytes;
  return rows;
}

}  // namespace

PixelSize png_size(std::span<const std::byte> packed) {
  return read(packed, nullptr, As::colours).size;
}

void decode_png(std::span<const std::byte> packed, PixelSize size, std::span<std::uint8_t> pixels) {
  read(packed, rows_at(pixels.data(), size, kColours).data(), As::colours);
}

void decode_png_numbers(std::span<const std::byte> packed, std::span<std::uint8_t> numbers,
                        std::size_t bytes_of_number) {
  const PngHeader header = read(packed, nullptr, As::numbers);
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
  std::uint8_t* const begin = numbers.data() + numbers.size() - count * stored;
  read(packed, rows_at(begin, header.size, stored).data(), As::numbers);
  if (stored == bytes_of_number) return;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t number = begin[i];
    std::memcpy(numbers.data() + i * sizeof number, &number, sizeof number);
  }
}

}  // namespace lockstep::pack
