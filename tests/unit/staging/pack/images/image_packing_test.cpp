// A pack of smaller images: what is changed, what is copied, and what is refused.
#include "staging/pack/images/image_packing.h"

#include <numeric>

#include "common/error.h"
#include "staging/pack/images/codec.h"
#include "staging/pack/write/packing.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using staging_test::ThrowsErrorWith;
using testing::ElementsAre;

constexpr PixelSize kPhoto{.height = 60, .width = 100};

// Brighter from left to right; red, green and blue differ.
std::vector<std::uint8_t> ramp(PixelSize size) {
  std::vector<std::uint8_t> pixels;
  for (std::size_t y = 0; y < size.height; ++y) {
    for (std::size_t x = 0; x < size.width; ++x) {
      const std::size_t level = 200 * x / size.width;
      for (const std::size_t more : {0, 20, 40}) pixels.push_back(static_cast<std::uint8_t>(level + more));
    }
  }
  return pixels;
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> view_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class ImagePacking : public staging_test::StagingTest {
 protected:
  ImagePacking() {
    options_.source = folder_ / "photos";
    options_.out = folder_ / "pack";
  }
  void write_jpeg(const std::string& name, PixelSize size = kPhoto) const {
    write("photos/" + name, text_of(encode_jpeg(ramp(size), size, kColours, 95)));
  }
  void write_png(const std::string& name) const {
    write("photos/" + name, text_of(encode_png(ramp(kPhoto), kPhoto, kColours)));
  }
  // The part of a kind of the sample; fails the test if there is none.
  std::string part(std::size_t sample, const std::string& kind) const {
    const std::unique_ptr<Reader> reader = open(options_.out);
    const std::vector<Part> parts = reader->parts(sample);
    for (std::size_t p = 0; p < parts.size(); ++p) {
      if (parts[p].kind != kind) continue;
      std::string content(parts[p].bytes, '\0');
      reader->read_part(sample, p, std::as_writable_bytes(std::span(content)));
      return content;
    }
    ADD_FAILURE() << "sample " << sample << " has no part " << kind;
    return "";
  }

  ImagePackingOptions options_;
};

TEST_F(ImagePacking, ScalesTheImagesAndCopiesTheOtherParts) {
  write_jpeg("a/cat1.jpeg");
  write("photos/a/cat1.cls", "7");
  write_png("dog.png");
  write("photos/dog.cls", "8");
  options_.recipe.resize = 30;
  options_.threads = 3;
  const ImagePackingResult result = pack_images(options_);
  EXPECT_EQ(result.samples, 2);
  EXPECT_EQ(result.images, 2);
  ASSERT_EQ(result.packs.size(), 1);
  EXPECT_EQ(result.packs[0].shards, 1);
  EXPECT_LT(result.packs[0].payload_bytes, result.source_bytes);
  const std::unique_ptr<Reader> reader = open(options_.out);
  reader->verify();
  EXPECT_EQ(reader->key(0), "a/cat1");
  EXPECT_EQ(reader->key(1), "dog");
  for (const std::size_t sample : {0U, 1U})
    EXPECT_EQ(image_size(view_of(part(sample, "jpg"))), (PixelSize{30, 50}));
  EXPECT_EQ(part(0, "cls"), "7");
  EXPECT_EQ(part(1, "cls"), "8");
}

TEST_F(ImagePacking, KeepsThePictureAtEachScale) {
  write_png("x.png");
  options_.recipe.encoding = ImageRecipe::Encoding::raw;
  for (const Filter filter : {Filter::box, Filter::triangle, Filter::lanczos}) {
    options_.recipe.resize = 30;
    options_.recipe.filter = filter;
    pack_images(options_);
    const std::string raw = part(0, "raw");
    ASSERT_EQ(raw.size(), 30 * 50 * kColours);
    for (std::size_t x = 3; x < 47; ++x) {
      const auto red = static_cast<unsigned char>(raw[(10 * 50 + x) * kColours]);
      EXPECT_NEAR(red, 4.0 * static_cast<double>(x) + 1, 2) << "column " << x;
      EXPECT_EQ(static_cast<unsigned char>(raw[(10 * 50 + x) * kColours + 2]), red + 40);
    }
    fs::remove_all(options_.out);
  }
}

TEST_F(ImagePacking, ShrinksWithoutIgnoringAnyPixel) {
  std::vector<std::uint8_t> stripes;
  for (std::size_t x = 0; x < kPhoto.height * kPhoto.width; ++x)
    stripes.insert(stripes.end(), kColours, x % 4 == 0 ? 200 : 0);
  write("photos/x.png", text_of(encode_png(stripes, kPhoto, kColours)));
  options_.recipe.encoding = ImageRecipe::Encoding::raw;
  options_.recipe.resize = 15;
  for (const Filter filter : {Filter::box, Filter::triangle, Filter::lanczos}) {
    options_.recipe.filter = filter;
    pack_images(options_);
    const std::string raw = part(0, "raw");
    for (std::size_t x = 3; x < 22; ++x)
      EXPECT_NEAR(static_cast<unsigned char>(raw[(7 * 25 + x) * kColours]), 50, 12) << "column " << x;
    fs::remove_all(options_.out);
  }
}

TEST_F(ImagePacking, DecodesALargeJpegAtAPartOfItsSize) {
  EXPECT_EQ(decoded_size(encode_jpeg(ramp({400, 600}), {400, 600}, kColours, 90), {100, 150}),
            (PixelSize{100, 150}));
  EXPECT_EQ(decoded_size(encode_jpeg(ramp({400, 600}), {400, 600}, kColours, 90), {101, 150}),
            (PixelSize{200, 300}));
  EXPECT_EQ(decoded_size(encode_png(ramp(kPhoto), kPhoto, kColours), {1, 1}), kPhoto);
  write_jpeg("x.jpg", {401, 603});
  options_.recipe.resize = 40;
  options_.recipe.encoding = ImageRecipe::Encoding::png;
  pack_images(options_);
  const std::string png = part(0, "png");
  EXPECT_EQ(image_size(view_of(png)), (PixelSize{40, 60}));
  std::vector<std::uint8_t> pixels(std::size_t{40} * 60 * kColours);
  decode_image(view_of(png), pixels);
  EXPECT_NEAR(pixels[(20 * 60 + 30) * kColours], 102, 4);
}

TEST_F(ImagePacking, CropsTheMiddleAndMakesGrey) {
  write_png("x.png");
  options_.recipe.crop = PixelSize{20, 10};
  options_.recipe.grey = true;
  options_.recipe.encoding = ImageRecipe::Encoding::raw;
  pack_images(options_);
  const std::string raw = part(0, "raw");
  ASSERT_EQ(raw.size(), 20 * 10);
  // 0.299 red, 0.587 green, 0.114 blue of the 45th column, whose red is 90.
  EXPECT_EQ(static_cast<unsigned char>(raw[0]), 90 + std::lround(0.587 * 20 + 0.114 * 40));
}

TEST_F(ImagePacking, SourceMayBeAPack) {
  write_png("x.png");
  const std::string png = staging_test::read(folder_ / "photos/x.png");
  options_.source = make_pack("large", {{"x.png", png}, {"y.png", png}});
  options_.recipe.resize = 6;
  EXPECT_EQ(pack_images(options_).images, 2);
  EXPECT_EQ(image_size(view_of(part(1, "jpg"))), (PixelSize{6, 10}));
}

TEST_F(ImagePacking, ResultDoesNotDependOnThreads) {
  for (int i = 0; i < 150; ++i) write_png(fmt::format("{:03}.png", i));
  options_.recipe.resize = 8;
  options_.shard_bytes = 20'000;
  std::vector<std::map<std::string, std::string>> packs;
  for (const int threads : {1, 4}) {
    options_.threads = threads;
    options_.out = folder_ / fmt::format("pack{}", threads);
    EXPECT_GT(pack_images(options_).packs.at(0).shards, 3);
    packs.push_back(staging_test::content_of(options_.out));
  }
  EXPECT_EQ(packs[0], packs[1]);
}

// 401 x 603 is decoded at 1/4 of its size for 40, at 1/2 for 90, and as a whole for 180 and 200.
TEST_F(ImagePacking, SeveralSizesMakeThePacksThatACallForEachMakes) {
  write_jpeg("x.jpg", {401, 603});
  write("photos/x.cls", "7");
  write_png("y.png");
  options_.sizes = {40, 200, 180, 90};
  const ImagePackingResult result = pack_images(options_);
  EXPECT_EQ(result.samples, 2);
  EXPECT_EQ(result.images, 2);
  ASSERT_EQ(result.packs.size(), 4);
  for (std::size_t i = 0; i < options_.sizes.size(); ++i) {
    const std::size_t size = options_.sizes[i];
    EXPECT_EQ(result.packs[i].out, folder_ / fmt::format("pack-{}", size));
    ImagePackingOptions alone = options_;
    alone.sizes = {size};
    alone.out = folder_ / "alone";
    EXPECT_EQ(pack_images(alone).packs.at(0).payload_bytes, result.packs[i].payload_bytes);
    EXPECT_EQ(staging_test::content_of(alone.out), staging_test::content_of(result.packs[i].out));
    fs::remove_all(alone.out);
  }
}

TEST_F(ImagePacking, SeveralSizesAppearTogetherOrNotAtAll) {
  write_png("x.png");
  options_.sizes = {20, 10, 20};
  EXPECT_THROW(pack_images(options_), UsageError);
  options_.sizes = {20, 10};
  options_.recipe.crop = PixelSize{12, 12};  // fits 20 only
  EXPECT_THAT([&] { pack_images(options_); }, ThrowsErrorWith("sample 0 (x)", "10 x 17"));
  EXPECT_THAT(names_here(), ElementsAre("photos"));
}

TEST_F(ImagePacking, ChangesOneOfSeveralImagesOnlyIfItIsNamed) {
  write_jpeg("x.jpg");
  write_png("x.mask.png");
  const std::string mask = staging_test::read(folder_ / "photos/x.mask.png");
  EXPECT_THAT([&] { pack_images(options_); }, ThrowsErrorWith("sample 0 (x)", "several images", "--kind"));
  EXPECT_THAT(names_here(), ElementsAre("photos"));
  options_.kind = "jpg";
  options_.recipe.resize = 10;
  pack_images(options_);
  EXPECT_EQ(part(0, "mask.png"), mask);
  EXPECT_EQ(image_size(view_of(part(0, "jpg"))).height, 10);
}

TEST_F(ImagePacking, NamesTheSampleThatCannotBeMade) {
  write_jpeg("a.jpg");
  write("photos/b.jpg", "no picture");
  const auto made = [&] { pack_images(options_); };
  EXPECT_THAT(made, ThrowsErrorWith("photos", "sample 1 (b)", "no PNG or JPEG"));
  write("photos/b.jpg", staging_test::read(folder_ / "photos/a.jpg").substr(0, 300));
  EXPECT_THAT(made, ThrowsErrorWith("sample 1 (b)", "cannot decode JPEG"));
  write_jpeg("b.jpg");
  options_.recipe.crop = PixelSize{61, 10};
  EXPECT_THAT(made, ThrowsErrorWith("sample 0 (a)", "60 x 100", "--resize"));
  options_.recipe.crop.reset();
  options_.recipe.max_pixels = 5999;
  EXPECT_THAT(made, ThrowsErrorWith("sample 0 (a)", "more than 5999"));
  EXPECT_THAT(names_here(), ElementsAre("photos"));
}

TEST_F(ImagePacking, StoppedCallKeepsNothing) {
  for (int i = 0; i < 70; ++i) write_png(fmt::format("{}.png", i));
  const std::atomic<bool> stop = true;
  options_.stop = &stop;
  options_.threads = 1;
  EXPECT_THROW(pack_images(options_), Stopped);
  EXPECT_THAT(names_here(), ElementsAre("photos"));
}

}  // namespace
}  // namespace lockstep::pack
