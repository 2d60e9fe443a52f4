// A pack of images, for the tests of the loader.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "common/files.h"
#include "runtime/data/batch/image_batch.h"
#include "runtime/data/loader.h"
#include "runtime/data/loader_options.h"
#include "tests/integration/data/loader_fixture.h"
#include "tests/pictures_in_memory.h"

namespace lockstep::data {

using Pixels = std::vector<std::uint8_t>;

inline std::string png_of(const Pixels& pixels, const ImageSize& size) {
  return testing::png_in_memory(pixels.data(), size.height, size.width, PNG_FORMAT_RGB);
}

inline std::string jpeg_of(const Pixels& pixels, const ImageSize& size) {
  return testing::jpeg_in_memory(pixels.data(), size.height, size.width);
}

inline constexpr ImageSize kSize{.height = 12, .width = 10};
inline constexpr std::size_t kImages = 40;

// Smooth, so that JPEG preserves it well. It differs between images and between channels.
inline Pixels picture(std::size_t number, const ImageSize& size = kSize) {
  Pixels pixels;
  for (std::size_t y = 0; y < size.height; ++y) {
    for (std::size_t x = 0; x < size.width; ++x) {
      for (std::size_t c = 0; c < 3; ++c) {
        pixels.push_back(static_cast<std::uint8_t>(4 * y + 3 * x + 40 * c + number));
      }
    }
  }
  return pixels;
}

class ImageLoader : public ::testing::Test {
 protected:
  ImageLoader() : folder_(::testing::TempDir() + "loader_images_" + std::to_string(getpid())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "files");
  }
  ~ImageLoader() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) {
    write_file_atomically(folder_ / "files" / name, content);
    files_.push_back(name);
  }

  // Every third image is a JPEG, and every third raw; labels are 7 times the number.
  void write_all(const std::string& label_kind = "cls") {
    for (std::size_t i = 0; i < kImages; ++i) {
      const Pixels pixels = picture(i);
      const std::string label = std::to_string(7 * i);
      write(fmt::format("i{:03}.{}", i, label_kind),
            label_kind == "json" ? "{\"label\": " + label + "}" : label + "\n");
      if (i % 3 == 0) write(fmt::format("i{:03}.png", i), png_of(pixels, kSize));
      if (i % 3 == 1) write(fmt::format("i{:03}.jpg", i), jpeg_of(pixels, kSize));
      if (i % 3 == 2) write(fmt::format("i{:03}.raw", i), {pixels.begin(), pixels.end()});
    }
  }

  const pack::Reader& pack() {
    reader_.reset();
    std::filesystem::remove_all(folder_ / "pack");
    pack::CreateOptions options;
    options.folder = folder_ / "files";
    options.out = folder_ / "pack";
    std::sort(files_.begin(), files_.end());
    options.files = files_;
    options.threads = 1;
    pack::create(options);
    reader_ = pack::open(options.out);
    return *reader_;
  }

  static PlanOptions plan(std::uint64_t cap = 7) { return {.cap = cap}; }
  static LoaderOptions images(ImageOptions options = {}) {
    if (options.size == ImageSize{}) options.size = kSize;
    LoaderOptions loader{.workers = 2};
    loader.images = std::move(options);
    return loader;
  }

  // Expects an error that names a sample.
  void expect_failure(ImageOptions options, const ::testing::Matcher<std::string>& why) {
    EXPECT_THAT(
        [&] {
          Loader loader(pack(), plan(), 0, nullptr, images(std::move(options)));
          for (const Batch& batch : loader) (void)batch;
        },
        ::testing::ThrowsMessage<Error>(::testing::AllOf(::testing::HasSubstr("sample 'i"), why)));
  }

  std::filesystem::path folder_;
  std::vector<std::string> files_;
  std::unique_ptr<pack::Reader> reader_;
};

}  // namespace lockstep::data
