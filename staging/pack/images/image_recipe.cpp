#include "staging/pack/images/image_recipe.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/error.h"
#include "staging/pack/images/codec.h"

namespace lockstep::pack {
namespace {

struct Image {
  PixelSize whole;  // as packed; it may be decoded at a part of that
  PixelSize size;
  std::size_t channels = kColours;
  std::vector<std::uint8_t> pixels;
};

std::size_t shorter_side(PixelSize size) {
  return std::min(size.height, size.width);
}

PixelSize scaled(PixelSize size, std::size_t shorter) {
  const auto side = [&](std::size_t length) {
    const double exact =
        static_cast<double>(length) * static_cast<double>(shorter) / static_cast<double>(shorter_side(size));
    return static_cast<std::size_t>(std::lround(exact));
  };
  return {side(size.height), side(size.width)};
}

// Decoding at a part of the size is fast, but not as sharp as the filter, which therefore gets twice what it needs.
// Returns `last`, the result for another recipe, if it has this size.
Image decode(const ImageRecipe& recipe, std::span<const std::byte> packed, Image last) {
  const PixelSize whole = image_size(packed);
  PixelSize at_least{};
  if (recipe.resize > 0 && shorter_side(whole) > 2 * recipe.resize)
    at_least = scaled(whole, 2 * recipe.resize);
  Image image{.whole = whole, .size = decoded_size(packed, at_least), .pixels = {}};
  if (image.size == last.size) return last;
  if (image.size.width > recipe.max_pixels / std::max<std::size_t>(image.size.height, 1))
    fail("the image has {} x {} pixels, more than {}", image.size.height, image.size.width,
         recipe.max_pixels);
  image.pixels.resize(image.size.height * image.size.width * kColours);
  decode_image(packed, image.pixels, at_least);
  return image;
}

Image to_grey(const Image& image) {
  constexpr float kRed = 0.299F;
  constexpr float kGreen = 0.587F;
  constexpr float kBlue = 0.114F;
  Image grey{.whole = image.whole, .size = image.size, .channels = 1, .pixels = {}};
  grey.pixels.reserve(image.pixels.size() / kColours);
  for (std::size_t i = 0; i < image.pixels.size(); i += kColours) {
    const auto at = [&](std::size_t c) { return static_cast<float>(image.pixels[i + c]); };
    grey.pixels.push_back(
        static_cast<std::uint8_t>(std::lround(kRed * at(0) + kGreen * at(1) + kBlue * at(2))));
  }
  return grey;
}

Image resample(const Image& image, const PixelBox& box, PixelSize to, Filter filter) {
  Image result{.whole = image.whole, .size = to, .channels = image.channels, .pixels = {}};
  result.pixels.resize(to.height * to.width * image.channels);
  crop_and_resample(image.pixels, image.size, image.channels, box, result.pixels, to, filter);
  return result;
}

std::vector<std::byte> remake(const ImageRecipe& recipe, Image image) {
  if (recipe.grey) image = to_grey(image);
  if (recipe.resize > 0 && shorter_side(image.size) != recipe.resize) {
    // The ratio is that of the whole image: a part of its size may be rounded.
    image = resample(image, {.size = image.size}, scaled(image.whole, recipe.resize), recipe.filter);
  }
  if (recipe.crop) {
    const PixelSize crop = *recipe.crop;
    if (crop.height > image.size.height || crop.width > image.size.width) {
      fail("the image has {} x {} pixels after scaling, less than the crop, {} x {}: use a larger --resize",
           image.size.height, image.size.width, crop.height, crop.width);
    }
    const PixelBox middle{.top = (image.size.height - crop.height) / 2,
                          .left = (image.size.width - crop.width) / 2,
                          .size = crop};
    image = resample(image, middle, crop, recipe.filter);
  }
  switch (recipe.encoding) {
    case ImageRecipe::Encoding::jpeg:
      return encode_jpeg(image.pixels, image.size, image.channels, recipe.quality);
    case ImageRecipe::Encoding::png:
      return encode_png(image.pixels, image.size, image.channels);
    case ImageRecipe::Encoding::raw:
      break;
  }
  const auto bytes = std::as_bytes(std::span(image.pixels));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::string ending_of(ImageRecipe::Encoding encoding) {
  switch (encoding) {
    case ImageRecipe::Encoding::jpeg:
      return "jpg";
    case ImageRecipe::Encoding::png:
      return "png";
    case ImageRecipe::Encoding::raw:
      return "raw";
  }
  return "";
}

std::vector<std::vector<std::byte>> remake_image(std::span<const ImageRecipe> recipes,
                                                 std::span<const std::byte> packed) {
  std::vector<std::vector<std::byte>> made;
  Image decoded;
  for (const ImageRecipe& recipe : recipes) {
    decoded = decode(recipe, packed, std::move(decoded));
    made.push_back(remake(recipe, decoded));
  }
  return made;
}

}  // namespace lockstep::pack
