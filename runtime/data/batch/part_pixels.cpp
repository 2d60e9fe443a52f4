#include "runtime/data/batch/part_pixels.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "common/error.h"
#include "staging/pack/images/resample.h"
#include "staging/pack/member_name.h"
#ifdef LOCKSTEP_WITH_IMAGES
#include "staging/pack/images/codec.h"
#include "staging/pack/images/exif.h"
#include "staging/pack/images/png_image.h"
#endif

namespace lockstep::data {
namespace {

bool names_a_format(std::string_view kind) {
  const std::string ending = pack::lower_case(kind.substr(kind.rfind('.') + 1));  // npos + 1 is 0
  constexpr std::array kEndings = {"png", "jpg", "jpeg", "jpe", "jfif"};
  return std::find(kEndings.begin(), kEndings.end(), ending) != kEndings.end();
}

// Raw pixels may begin with any bytes. So a part of their size is compressed only if its kind says so.
bool is_compressed(std::string_view kind, std::span<const std::byte> packed, const PixelFormat& format) {
  const auto begins_with = [&](std::initializer_list<unsigned> magic) {
    return packed.size() >= magic.size() &&
           std::equal(magic.begin(), magic.end(), packed.begin(),
                      [](unsigned wanted, std::byte found) { return std::byte(wanted) == found; });
  };
  if (!begins_with({0x89, 'P', 'N', 'G'}) && !begins_with({0xff, 0xd8, 0xff})) return false;
  return names_a_format(kind) || packed.size() != format.raw.pixels() * format.bytes_of_pixel();
}

// A format of pictures that is not decoded here; "" for other bytes.
std::string_view other_format(std::span<const std::byte> packed) {
  const std::string_view bytes(reinterpret_cast<const char*>(packed.data()), packed.size());
  using std::string_view_literals::operator""sv;
  if (bytes.starts_with("GIF8")) return "GIF";
  if (bytes.starts_with("BM")) return "BMP";
  if (bytes.starts_with("II*\0"sv) || bytes.starts_with("MM\0*"sv)) return "TIFF";
  if (bytes.starts_with("RIFF") && bytes.substr(4).find("WEBP") == 4) return "WebP";
  return bytes.find("ftyp") == 4 ? "AVIF or HEIC" : "";
}

pack::PixelSize to_pixels(const ImageSize& size) {
  return {size.height, size.width};
}

ImageSize decoded_size([[maybe_unused]] std::span<const std::byte> packed,
                       [[maybe_unused]] const PixelFormat& format) {
#ifdef LOCKSTEP_WITH_IMAGES
  const pack::PixelSize size = format.numbers ? pack::image_size(packed)
                                              : pack::decoded_size(packed, to_pixels(format.decode_at_least));
  return {size.height, size.width};
#else
  fail("this build cannot decode PNG and JPEG: build with libpng and libjpeg, or pack raw pixels");
#endif
}

void decode([[maybe_unused]] std::span<const std::byte> packed,
            [[maybe_unused]] std::span<std::uint8_t> pixels, [[maybe_unused]] const PixelFormat& format) {
#ifdef LOCKSTEP_WITH_IMAGES
  if (format.numbers) return pack::decode_png_numbers(packed, pixels, bytes_of(format.type));
  pack::decode_image(packed, pixels, to_pixels(format.decode_at_least));
#endif
}

void check_compressed(const PixelFormat& format) {
  const std::size_t channels = format.numbers ? 1 : ImageSize::kChannels;
  if (format.channels != channels) {
    fail("PNG and JPEG are decoded to {} channel{}, not {}", channels, channels == 1 ? "" : "s",
         format.channels);
  }
  if (!format.numbers && format.type != PixelType::uint8)
    fail("PNG and JPEG are decoded to uint8, not int16");
}

}  // namespace

int stored_orientation([[maybe_unused]] std::string_view kind,
                       [[maybe_unused]] std::span<const std::byte> packed,
                       [[maybe_unused]] const PixelFormat& format) {
#ifdef LOCKSTEP_WITH_IMAGES
  if (is_compressed(kind, packed, format)) return pack::exif_orientation(packed);
#endif
  return 1;
}

bool decodes_smaller(std::string_view kind, std::span<const std::byte> packed, const PixelFormat& format,
                     const ImageSize& decode_at_least) {
  if (!is_compressed(kind, packed, format)) return false;
  PixelFormat smaller = format;
  smaller.decode_at_least = decode_at_least;
  return decoded_size(packed, smaller).height < decoded_size(packed, format).height;
}

std::string text_of(const ImageSize& size) {
  const std::string image = fmt::format("{} x {}", size.height, size.width);
  return size.depth == 0 ? image : fmt::format("{} x {}", size.depth, image);
}

PartPixels pixels_of_part(std::string_view kind, std::span<const std::byte> packed, const PixelFormat& format,
                          bool for_transform, std::span<std::uint8_t> out,
                          std::vector<std::uint8_t>& memory) {
  const bool compressed = is_compressed(kind, packed, format);
  if (compressed) check_compressed(format);
  const ImageSize size = compressed ? decoded_size(packed, format) : format.raw;
  const bool direct = !for_transform && size == format.size;
  if (!for_transform && !direct) {
    fail("the {} is {}, not {}: scale it in a transform, with {}()", format.numbers ? "target" : "image",
         text_of(size), text_of(format.size),
         format.numbers || size.depth > 0 ? "crop_nearest" : "crop_and_scale");
  }
  if (compressed && !direct && size.height > 0 && size.width > format.max_pixels / size.height) {
    fail("the image is {}, more than the {} pixels that ImageOptions::max_pixels allows", text_of(size),
         format.max_pixels);
  }
  const std::size_t bytes = size.pixels() * format.bytes_of_pixel();
  if (compressed) {
    if (!direct) memory.resize(bytes);
    const std::span<std::uint8_t> decoded = direct ? out : std::span(memory);
    decode(packed, decoded, format);
    return {decoded, size};
  }
  if (packed.size() != bytes) {
    if (const std::string_view other = other_format(packed); !other.empty())
      fail(
          "the part '{}' is {}, not PNG or JPEG: convert the pictures with examples/recipes/resize_images.py",
          kind, other);
    fail("the part '{}' has {} bytes and is neither PNG, JPEG nor {} pixels of {} channels{}", kind,
         packed.size(), text_of(size), format.channels, format.type == PixelType::int16 ? " of int16" : "");
  }
  const std::span pixels(reinterpret_cast<const std::uint8_t*>(packed.data()), bytes);
  if (direct) std::copy(pixels.begin(), pixels.end(), out.begin());
  return {pixels, size};
}

}  // namespace lockstep::data
