// The loader reads dense targets, such as masks, and volumes.
#include "tests/integration/data/image_loader_fixture.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The classes of a mask: grey values of 8 bits, indices of a palette (2 bits each), or numbers of 16 bits.
TEST_F(ImageLoader, MasksHaveTheNumbersOfTheirPngsBesideTheLabels) {
  const auto value = [](std::size_t sample, std::size_t pixel) {
    return sample == 1 ? (pixel + sample) % 4 : (7 * pixel + 30 * sample) % 256;
  };
  for (std::size_t i = 0; i < 4; ++i) {
    Pixels narrow;
    std::vector<std::uint16_t> wide;
    for (std::size_t pixel = 0; pixel < kSize.pixels(); ++pixel) {
      narrow.push_back(static_cast<std::uint8_t>(value(i, pixel)));
      wide.push_back(static_cast<std::uint16_t>(value(i, pixel)));
    }
    write(fmt::format("i{}.png", i), png_of(picture(i), kSize));
    write(fmt::format("i{}.cls", i), std::to_string(i));
    const std::string name = fmt::format("i{}.mask.png", i);
    const auto png = [](const auto& numbers, png_uint_32 format, unsigned colours = 0) {
      return testing::png_in_memory(numbers.data(), kSize.height, kSize.width, format, colours);
    };
    if (i == 0) write(name, png(narrow, PNG_FORMAT_GRAY));
    if (i == 1) write(name, png(narrow, PNG_FORMAT_RGB_COLORMAP, 4));
    if (i == 2) write(name, png(wide, PNG_FORMAT_LINEAR_Y));
    if (i == 3) {
      write(name, {reinterpret_cast<const char*>(wide.data()), 2 * wide.size()});
    }
  }
  ImageOptions options;
  options.target = TargetOptions{.part = "mask.png", .type = PixelType::int16};
  std::int64_t seen = 0;
  {  // the loader ends before its pack is replaced
    Loader loader(pack(), {.ranks = 1, .cap = 3}, 0, nullptr, images(options));
    for (const Batch& batch : loader) {
      ASSERT_EQ(batch.targets.scalar_type(), torch::kInt16);
      for (std::int64_t i = 0; i < batch.sample_ids.size(0); ++i, ++seen) {
        const std::int64_t number = batch.sample_ids[i].item<std::int64_t>();
        EXPECT_EQ(batch.labels[i].item<std::int64_t>(), number);
        EXPECT_EQ(batch.images[i][0][0][0].item<std::int64_t>(), number);
        const torch::Tensor target = batch.targets[i].contiguous();
        ASSERT_EQ(target.sizes(), (std::vector<std::int64_t>{1, 12, 10}));
        for (std::size_t pixel = 0; pixel < kSize.pixels(); ++pixel) {
          ASSERT_EQ(static_cast<std::size_t>(target.data_ptr<std::int16_t>()[pixel]),
                    value(static_cast<std::size_t>(number), pixel))
              << "sample " << number << ", pixel " << pixel;
        }
      }
    }
  }
  EXPECT_EQ(seen, 4);
  options.target->type = PixelType::uint8;
  expect_failure(options, HasSubstr("16 bits: read it as int16"));
  options.target->part = "seg.png";
  expect_failure(options, HasSubstr("there is no part 'seg.png' with a dense target"));
}

TEST_F(ImageLoader, AMaskWithColoursIsRefused) {
  write("i0.png", png_of(picture(0), kSize));
  write("i0.mask.png", png_of(picture(0), kSize));
  ImageOptions options;
  options.label = "";
  options.target = TargetOptions{.part = "mask.png"};
  expect_failure(options, HasSubstr("3 channels: numbers need one"));
}

// A transform cuts the same box out of both, with a scale of two, and needs no label.
TEST_F(ImageLoader, TransformsCutVolumesAndTheirTargetsAlike) {
  constexpr ImageSize whole{.height = 6, .width = 8, .depth = 4};
  constexpr ImageSize part{.height = 2, .width = 3, .depth = 2};
  const auto voxel = [](std::size_t z, std::size_t y, std::size_t x) {
    return static_cast<std::int16_t>(100 * static_cast<int>(z) + 10 * static_cast<int>(y) +
                                     static_cast<int>(x) - 200);
  };
  std::vector<std::int16_t> voxels;
  std::string mask;
  for (std::size_t z = 0; z < whole.depth; ++z) {
    for (std::size_t y = 0; y < whole.height; ++y) {
      for (std::size_t x = 0; x < whole.width; ++x) {
        voxels.push_back(voxel(z, y, x));
        mask += static_cast<char>(voxel(z, y, x) > 0 ? 1 : 0);
      }
    }
  }
  write("i0.ct", {reinterpret_cast<const char*>(voxels.data()), 2 * voxels.size()});
  write("i0.mask", mask);
  ImageOptions options{.size = part, .channels = 1, .type = PixelType::int16, .raw = whole};
  options.label = "";
  options.target = TargetOptions{.part = "mask", .raw = whole};
  options.transform = [&](ImageSample& sample) {
    EXPECT_EQ(sample.size, whole);
    EXPECT_EQ(sample.target_size, whole);
    EXPECT_EQ(as_int16(sample.pixels)[1], voxel(0, 0, 1));
    const ImageBox box{.top = 2, .left = 1, .size = {.height = 4, .width = 6, .depth = 2}, .front = 1};
    crop_nearest(sample.pixels, sample.size, 2, box, sample.out, part);
    crop_nearest(sample.target, sample.target_size, 1, box, sample.target_out, part);
    ImageBox outside = box;
    outside.front = 3;
    EXPECT_THROW(crop_nearest(sample.pixels, sample.size, 2, outside, sample.out, part), UsageError);
    EXPECT_THROW(crop_nearest(sample.pixels, sample.size, 1, box, sample.out, part), UsageError);
  };
  Loader loader(pack(), {.ranks = 1, .cap = 4}, 0, nullptr, images(options));
  const Batch batch = *loader.begin();
  EXPECT_FALSE(batch.labels.defined());
  ASSERT_EQ(batch.images.sizes(), (std::vector<std::int64_t>{1, 1, 2, 2, 3}));
  ASSERT_EQ(batch.targets.sizes(), batch.images.sizes());
  EXPECT_EQ(batch.targets.scalar_type(), torch::kUInt8);
  for (std::int64_t z = 0; z < 2; ++z) {
    for (std::int64_t y = 0; y < 2; ++y) {
      for (std::int64_t x = 0; x < 3; ++x) {
        // The nearest pixel of two is the second one.
        const auto expected = voxel(static_cast<std::size_t>(1 + z), static_cast<std::size_t>(2 + 2 * y + 1),
                                    static_cast<std::size_t>(1 + 2 * x + 1));
        EXPECT_EQ(batch.images[0][0][z][y][x].item<std::int64_t>(), expected);
        EXPECT_EQ(batch.targets[0][0][z][y][x].item<std::int64_t>(), expected > 0 ? 1 : 0);
      }
    }
  }
}

TEST_F(ImageLoader, AVolumeOfAnotherSizeNamesBothSizes) {
  write("i0.ct", std::string(3 * 4 * 5, 'x'));
  ImageOptions options{.size = {.height = 4, .width = 5, .depth = 2}, .channels = 1};
  options.label = "";
  expect_failure(options, AllOf(HasSubstr("60 bytes"), HasSubstr("2 x 4 x 5 pixels of 1 channels")));
}

}  // namespace
}  // namespace lockstep::data
