// Images are decoded to the pixels that were packed; a damaged image is refused and not filled with grey.
#include "staging/pack/images/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "staging/pack/images/exif.h"
#include "tests/pictures_in_memory.h"

namespace lockstep::pack {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Bytes = std::vector<std::byte>;
using Pixels = std::vector<std::uint8_t>;

constexpr PixelSize kSize{.height = 37, .width = 21};
constexpr std::size_t kBytes = kSize.height * kSize.width * kColours;

// A smooth picture, which JPEG changes little.
Pixels gradient(std::size_t channels) {
  Pixels pixels;
  for (std::size_t y = 0; y < kSize.height; ++y) {
    for (std::size_t x = 0; x < kSize.width; ++x) {
      for (std::size_t c = 0; c < channels; ++c) {
        pixels.push_back(static_cast<std::uint8_t>(3 * y + 2 * x + 30 * c));
      }
    }
  }
  return pixels;
}

Bytes bytes_of(const std::string& packed) {
  const auto* const begin = reinterpret_cast<const std::byte*>(packed.data());
  return {begin, begin + packed.size()};
}

Bytes png_of(const Pixels& pixels, png_uint_32 format) {
  return bytes_of(lockstep::testing::png_in_memory(pixels.data(), kSize.height, kSize.width, format));
}

Bytes jpeg_of(const Pixels& pixels, int channels, PixelSize size = kSize) {
  return bytes_of(lockstep::testing::jpeg_in_memory(pixels.data(), size.height, size.width, channels));
}

Pixels decode(const Bytes& packed) {
  Pixels pixels(kBytes);
  decode_image(packed, pixels);
  return pixels;
}

std::vector<int> differences(const Pixels& x, const Pixels& y) {
  EXPECT_EQ(x.size(), y.size());
  std::vector<int> found;
  for (std::size_t i = 0; i < x.size(); ++i) found.push_back(std::abs(x[i] - y[i]));
  return found;
}

TEST(Image, DecodesPngExactly) {
  const Bytes packed = png_of(gradient(3), PNG_FORMAT_RGB);
  EXPECT_EQ(image_size(packed), kSize);
  EXPECT_EQ(decode(packed), gradient(3));
}

TEST(Image, DecodesJpegClosely) {
  const Bytes packed = jpeg_of(gradient(3), 3);
  EXPECT_EQ(image_size(packed), kSize);
  EXPECT_THAT(differences(decode(packed), gradient(3)), Each(::testing::Le(6)));
}

// The loader decodes a large JPEG at a part of its size.
TEST(Image, DecodesALargeJpegAtAHalfAQuarterOrAnEighth) {
  const PixelSize large{.height = 401, .width = 603};
  Pixels pixels;
  for (std::size_t i = 0; i < large.height * large.width; ++i)
    pixels.insert(pixels.end(), kColours, static_cast<std::uint8_t>(i % large.width / 3));
  const Bytes packed = jpeg_of(pixels, 3, large);
  EXPECT_EQ(decoded_size(packed, {100, 150}), (PixelSize{101, 151}));
  EXPECT_EQ(decoded_size(packed, {102, 150}), (PixelSize{201, 302}));
  EXPECT_EQ(decoded_size(packed, {100, 152}), (PixelSize{201, 302}));
  EXPECT_EQ(decoded_size(packed, {1, 1}), (PixelSize{51, 76}));
  EXPECT_EQ(decoded_size(packed, {300, 1}), large);
  EXPECT_EQ(decoded_size(png_of(gradient(3), PNG_FORMAT_RGB), {1, 1}), kSize);
  Pixels small(std::size_t{101} * 151 * kColours);
  decode_image(packed, small, {100, 150});
  EXPECT_NEAR(small[(50 * 151 + 75) * kColours], 100, 4);
}

TEST(Resample, ShrinksWithoutIgnoringAnyPixel) {
  const PixelSize size{.height = 60, .width = 100};
  Pixels stripes;
  for (std::size_t i = 0; i < size.height * size.width; ++i)
    stripes.insert(stripes.end(), kColours, i % 4 == 0 ? 200 : 0);
  Pixels small(std::size_t{15} * 25 * kColours);
  crop_and_resample(stripes, size, kColours, {.size = size}, small, {15, 25});
  for (std::size_t x = 3; x < 22; ++x) EXPECT_NEAR(small[(7 * 25 + x) * kColours], 50, 12) << "column " << x;
}

TEST(Image, GreyBecomesRedGreenAndBlue) {
  const Pixels grey = gradient(1);
  for (const Bytes& packed : {png_of(grey, PNG_FORMAT_GRAY), jpeg_of(grey, 1)}) {
    const Pixels pixels = decode(packed);
    for (std::size_t i = 0; i < grey.size(); ++i) {
      EXPECT_EQ(pixels[3 * i], pixels[3 * i + 1]);
      EXPECT_EQ(pixels[3 * i], pixels[3 * i + 2]);
      EXPECT_LE(std::abs(pixels[3 * i] - grey[i]), 2);
    }
  }
}

TEST(Image, TransparencyIsIgnored) {
  Pixels pixels(4 * kSize.height * kSize.width, 200);
  for (std::size_t i = 3; i < pixels.size(); i += 4) pixels[i] = 0;
  EXPECT_THAT(decode(png_of(pixels, PNG_FORMAT_RGBA)), Each(200));
}

TEST(Image, ADamagedCmykJpegIsRefused) {
  Bytes packed = jpeg_of(gradient(4), 4);
  EXPECT_NO_THROW(decode(packed));
  packed.resize(packed.size() / 2);
  EXPECT_THAT([&] { decode(packed); }, ThrowsMessage<Error>(HasSubstr("cannot decode JPEG")));
}

// A PNG with another chunk before its pixels. The checksum of the chunk may be wrong.
Bytes png_with(const Bytes& png, const std::string& name_and_content, bool right) {
  const auto big = [](std::uint32_t number) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(number >> shift));
    return bytes;
  };
  std::uint32_t sum = 0xffffffff;
  for (const char character : name_and_content) {
    sum ^= static_cast<unsigned char>(character);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1U) ^ ((sum & 1U) != 0 ? 0xedb88320U : 0U);
  }
  const std::string chunk = big(static_cast<std::uint32_t>(name_and_content.size() - 4)) + name_and_content +
                            big(right ? ~sum : 1U);
  Bytes with = png;
  const auto* const begin = reinterpret_cast<const std::byte*>(chunk.data());
  with.insert(with.begin() + 8 + 25, begin, begin + chunk.size());  // after the signature and IHDR
  return with;
}

// EXIF with one entry before the orientation, in this order of bytes.
std::string exif(bool big, char orientation) {
  using namespace std::string_literals;
  return big ? "MM\0\x2a\0\0\0\x08\0\x02\x01\x0f\0\x02\0\0\0\x01\0\0\0\0\x01\x12\0\x03\0\0\0\x01\0"s +
                   orientation + "\0\0\0\0\0\0"s
             : "II\x2a\0\x08\0\0\0\x02\0\x0f\x01\x02\0\x01\0\0\0\0\0\0\0\x12\x01\x03\0\x01\0\0\0"s +
                   orientation + "\0\0\0\0\0\0\0"s;
}

Bytes jpeg_with_exif(const std::string& content) {
  Bytes packed = jpeg_of(gradient(3), 3);
  const std::string segment = std::string("\xff\xe1\0", 3) + static_cast<char>(content.size() + 8) +
                              std::string("Exif\0\0", 6) + content;
  const auto* const begin = reinterpret_cast<const std::byte*>(segment.data());
  packed.insert(packed.begin() + 2 + 18, begin,
                begin + segment.size());  // after the first segment of the header
  return packed;
}

TEST(Image, FindsTheOrientationThatACameraStored) {
  const Bytes png = png_of(gradient(3), PNG_FORMAT_RGB);
  for (const bool big : {false, true}) {
    for (const char orientation : {1, 3, 6, 8}) {
      EXPECT_EQ(exif_orientation(jpeg_with_exif(exif(big, orientation))), orientation);
      EXPECT_EQ(exif_orientation(png_with(png, "eXIf" + exif(big, orientation), true)), orientation);
    }
  }
  using namespace std::string_literals;  // a number of four bytes
  EXPECT_EQ(
      exif_orientation(jpeg_with_exif("MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x04\0\0\0\x01\0\0\0\x06\0\0\0\0"s)),
      6);
  EXPECT_EQ(exif_orientation(png), 1);
  EXPECT_EQ(exif_orientation(jpeg_of(gradient(3), 3)), 1);
  EXPECT_EQ(exif_orientation(jpeg_with_exif(exif(true, 9))), 1);
  EXPECT_EQ(exif_orientation(jpeg_with_exif(std::string("II\x2a\0\xff\xff\xff\xff", 8))), 1);
  Bytes cut = jpeg_with_exif(exif(true, 6));
  for (cut.resize(60); !cut.empty(); cut.pop_back()) EXPECT_EQ(exif_orientation(cut), 1) << cut.size();
}

TEST(Image, RefusesATruncatedImage) {
  for (const Bytes& whole : {png_of(gradient(3), PNG_FORMAT_RGB), jpeg_of(gradient(3), 3)}) {
    for (const std::size_t bytes : {whole.size() - 20, whole.size() / 2}) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
      EXPECT_THAT([&] { decode(cut); }, ThrowsMessage<Error>(HasSubstr("cannot decode "))) << bytes;
    }
  }
}

TEST(Image, DecodesAPngWithErrorsOutsideItsPixels) {
  const Bytes plain = png_of(gradient(3), PNG_FORMAT_RGB);
  using namespace std::string_literals;
  EXPECT_EQ(decode(png_with(plain, "tEXtAuthor\0somebody"s, false)), gradient(3));
  EXPECT_EQ(decode(png_with(plain, "tIME\x07\xe8\x0d\x28\x19\x3d\x3d"s, true)), gradient(3));
  EXPECT_EQ(decode(png_with(plain, "iCCPname\0\0no profile"s, true)), gradient(3));
}

TEST(Image, RefusesAPngWithMissingOrWrongPixels) {
  const Bytes whole = png_of(gradient(3), PNG_FORMAT_RGB);
  const std::string_view text(reinterpret_cast<const char*>(whole.data()), whole.size());
  const std::size_t begin = text.find("IDAT");
  const std::size_t end = text.find("IEND") - 4;
  for (std::size_t i = begin; i < end; ++i) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THROW(decode(cut), Error) << "cut at " << i << " of " << whole.size();
    Bytes wrong = whole;
    wrong[i] ^= std::byte{0x04};
    EXPECT_THROW(decode(wrong), Error) << "byte " << i << " of " << whole.size();
  }
}

TEST(Image, DecodesAJpegWithBytesBetweenItsSegments) {
  const Bytes plain = jpeg_of(gradient(3), 3);
  Bytes more = plain;
  more.insert(more.end() - 2, 5, std::byte{0});  // before the end-of-image marker
  EXPECT_EQ(decode(more), decode(plain));
  more = plain;
  more.insert(more.begin() + 2 + 18, 5, std::byte{0});  // after the first segment of the header
  EXPECT_EQ(decode(more), decode(plain));
}

TEST(Image, RefusesOtherData) {
  const Bytes text(100, std::byte{'a'});
  EXPECT_THAT([&] { image_size(text); }, ThrowsMessage<Error>(HasSubstr("neither PNG nor JPEG")));
  EXPECT_THAT([&] { decode(text); }, ThrowsMessage<Error>(HasSubstr("neither PNG nor JPEG")));
  EXPECT_THROW(image_size({}), Error);
}

TEST(Image, RefusesABufferOfAnotherSize) {
  for (const Bytes& packed : {png_of(gradient(3), PNG_FORMAT_RGB), jpeg_of(gradient(3), 3)}) {
    Pixels pixels(kBytes - 1);
    EXPECT_THAT([&] { decode_image(packed, pixels); }, ThrowsMessage<Error>(HasSubstr("37 x 21")));
  }
}

}  // namespace
}  // namespace lockstep::pack
