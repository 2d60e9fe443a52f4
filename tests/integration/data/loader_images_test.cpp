// The loader decodes, crops, labels and normalises images, and a network learns from them.
#include <map>
#include <mutex>
#include <random>

#include "tests/integration/data/image_loader_fixture.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(ImageLoader, BatchesHavePngJpegAndRawImagesWithTheirLabelsOnceInAnEpoch) {
  for (const std::string label : {"cls", "json", ""}) {
    files_.clear();
    // Without labels the image is the first part, before "text".
    write_all(label.empty() ? "text" : label);
    ImageOptions options;
    options.label = label;
    Loader loader(pack(), plan(), world(), images(options));
    std::vector<std::int64_t> seen(kImages);
    for (const Batch& batch : loader) {
      const std::int64_t count = batch.sample_ids.size(0);
      ASSERT_LE(count, 7);
      EXPECT_EQ(batch.images.sizes(), (std::vector<std::int64_t>{count, 3, 12, 10}));
      EXPECT_EQ(batch.images.scalar_type(), torch::kUInt8);
      EXPECT_EQ(batch.token_count, count);
      EXPECT_EQ(batch.loss_tokens, count);
      EXPECT_FALSE(batch.tokens.defined());
      ASSERT_EQ(batch.labels.defined(), !label.empty());
      for (std::int64_t i = 0; i < count; ++i) {
        const auto number = static_cast<std::size_t>(batch.sample_ids[i].item<std::int64_t>());
        ++seen[number];
        if (!label.empty()) {
          EXPECT_EQ(batch.labels[i].item<std::int64_t>(), static_cast<std::int64_t>(7 * number));
        }
        const Pixels pixels = picture(number);
        const auto expected = torch::tensor(std::vector<int>(pixels.begin(), pixels.end()))
                                  .view({12, 10, 3})
                                  .permute({2, 0, 1});
        const auto off = (batch.images[i].to(torch::kInt64) - expected).abs().max().item<std::int64_t>();
        EXPECT_LE(off, number % 3 == 1 ? 6 : 0) << "image " << number;
      }
    }
    world().communicator().all_reduce({seen.data(), seen.size(), comm::DataType::i64}, "seen")->wait();
    EXPECT_THAT(seen, ::testing::Each(1));
  }
}

TEST_F(ImageLoader, EachMicroBatchHasAsManyImagesAsTheCap) {
  write_all("cls");
  PlanOptions each = plan(3);
  each.ranks = 2;
  each.accumulate = 2;
  Loader loader(pack(), each, 1, nullptr, images());
  const auto full_steps = static_cast<std::int64_t>(kImages / (2 * 2 * 3));
  ASSERT_GT(full_steps, 1);
  std::int64_t batches = 0;
  for (const Batch& batch : loader) {
    if (batch.step + 1 >= full_steps) break;
    ++batches;
    EXPECT_EQ(batch.images.size(0), 3);
  }
  EXPECT_EQ(batches, 2 * (full_steps - 1));
}

TEST_F(ImageLoader, TransformsResizeImagesAndMayChangeLabels) {
  for (std::size_t i = 0; i < 10; ++i) {
    const ImageSize size{.height = 20 + i, .width = 30};
    write(fmt::format("i{:03}.png", i), png_of(picture(i, size), size));
    write(fmt::format("i{:03}.cls", i), std::to_string(i));
  }
  std::mutex mutex;
  std::map<SampleId, std::uint64_t> seeds;
  ImageOptions options;
  options.transform = [&](ImageSample& sample) {
    EXPECT_EQ(sample.size.height, 20 + sample.id);
    EXPECT_EQ(sample.pixels.size(), sample.size.bytes());
    crop_and_scale(sample.pixels, sample.size, sample.channels, {.top = 2, .left = 5, .size = kSize},
                   sample.out, kSize);
    *sample.label += 100;
    const std::lock_guard lock(mutex);
    seeds[sample.id] = sample.seed;
  };
  Loader loader(pack(), {.ranks = 1, .cap = 4}, 0, nullptr, images(options));
  std::size_t count = 0;
  for (const Batch& batch : loader) {
    for (std::int64_t i = 0; i < batch.sample_ids.size(0); ++i, ++count) {
      const std::int64_t number = batch.sample_ids[i].item<std::int64_t>();
      EXPECT_EQ(batch.labels[i].item<std::int64_t>(), number + 100);
      EXPECT_EQ(batch.images[i][0][0][0].item<std::int64_t>(), 4 * 2 + 3 * 5 + number);
      EXPECT_EQ(batch.images[i][2][11][9].item<std::int64_t>(), 4 * 13 + 3 * 14 + 80 + number);
    }
  }
  EXPECT_EQ(count, 10U);
  std::map<std::uint64_t, int> different;
  for (const auto& [id, seed] : seeds) ++different[seed];
  EXPECT_EQ(different.size(), seeds.size());
}

// Half of 48 x 40 is twice the batch's 12 x 10.
TEST_F(ImageLoader, ImagesThatNeedNotBeDecodedAtTheirSizeAreNamed) {
  const auto said = [&](const ImageSize& size, const ImageSize& at_least) {
    files_.clear();
    const std::string jpeg = jpeg_of(picture(1, size), size);
    for (int i = 0; i < 80; ++i) write(fmt::format("i{:03}.jpg", i), jpeg);
    ImageOptions options;
    options.label = "";
    options.decode_at_least = at_least;
    options.transform = [](ImageSample& sample) {
      crop_and_scale(sample.pixels, sample.size, sample.channels, {.size = sample.size}, sample.out, kSize);
    };
    ::testing::internal::CaptureStderr();
    Loader loader(pack(), plan(), 0, nullptr, images(options));
    for (const Batch& batch : loader) (void)batch;
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(said({48, 40}, {}),
              HasSubstr("the workers decode images of 48 x 40 pixels for batches of 12 x 10: set "
                        "ImageOptions::decode_at_least = {24, 20}"));
  EXPECT_EQ(said({48, 40}, {24, 20}), "");
  EXPECT_EQ(said({46, 40}, {}), "") << "half is less than twice the batch's size";
}

// Ten packs of 20 images with one label each, joined many times.
TEST_F(ImageLoader, DataThatIsSortedByLabelAndLargerThanABlockIsNamed) {
  std::vector<std::unique_ptr<pack::Reader>> packs;
  for (int label = 0; label < 10; ++label) {
    files_.clear();
    for (int i = 0; i < 20; ++i) {
      write(fmt::format("i{:02}.raw", i), std::string(kSize.bytes(), '\0'));
      write(fmt::format("i{:02}.cls", i), std::to_string(label));
    }
    pack();
    const auto place = folder_ / std::to_string(label);
    std::filesystem::rename(folder_ / "pack", place);
    packs.push_back(pack::open(place));
  }
  const auto said = [&](std::size_t count, bool sorted, Order order = Order::shuffled) {
    std::vector<NamedPack> readers;
    for (std::size_t i = 0; i < count; ++i)
      readers.push_back({std::to_string(i), packs[sorted ? i * 10 / count : i % 10].get()});
    const JoinedPacks all(readers);
    ::testing::internal::CaptureStderr();
    Loader loader(all, {.ranks = 2, .cap = 500, .order = order}, 0, nullptr, images());
    std::int64_t seen = 0;
    for (const Batch& batch : loader) {
      if ((seen += batch.images.size(0)) >= 5000) break;
    }
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(
      said(14'000, true),
      HasSubstr(
          "have the same label, of any two samples 10 %. The loader shuffles 262144 of the 280000 samples at a time"));
  EXPECT_EQ(said(14'000, true, Order::sequential), "");
  EXPECT_EQ(said(13'000, true), "") << "one block";
  EXPECT_EQ(said(14'000, false), "");
}

TEST_F(ImageLoader, AnImageOfAnotherSizeNamesTheSampleAndBothSizes) {
  write("i0.png", png_of(picture(0, {.height = 5, .width = 6}), {.height = 5, .width = 6}));
  write("i0.cls", "1");
  expect_failure({}, AllOf(HasSubstr("5 x 6, not 12 x 10"), HasSubstr("crop_and_scale")));
}

TEST_F(ImageLoader, AnImageOfTooManyPixelsIsRefusedBeforeMemoryIsAllocated) {
  // Bytes 16 to 23 of a PNG are its width and height. They are set to 1,000,000 x 1,000,000, and the header's
  // checksum is computed again.
  std::string bomb = png_of(picture(0), kSize);
  const std::string million("\x00\x0f\x42\x40", 4);
  bomb.replace(16, 8, million + million);
  std::uint32_t sum = 0xffffffff;
  for (std::size_t i = 12; i < 29; ++i) {
    sum ^= static_cast<unsigned char>(bomb[i]);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1U) ^ ((sum & 1U) != 0 ? 0xedb88320U : 0U);
  }
  for (int i = 0; i < 4; ++i)
    bomb[29 + static_cast<std::size_t>(i)] = static_cast<char>(~sum >> (24 - 8 * i));
  write("i0.png", bomb);
  write("i0.cls", "1");
  ImageOptions options;
  options.transform = [](ImageSample& /*sample*/) {};
  expect_failure(options, AllOf(HasSubstr("1000000 x 1000000"), HasSubstr("max_pixels")));
}

TEST_F(ImageLoader, AnInvalidLabelIsRefusedWithTheReason) {
  write("i0.png", png_of(picture(0), kSize));
  expect_failure({}, HasSubstr("no part 'cls'"));
  write("i0.cls", "cat");
  expect_failure({}, HasSubstr("label 'cat' is not a whole number"));
  write("i0.json", "{\"other\": 3}");
  ImageOptions options;
  options.label = "json";
  expect_failure(options, HasSubstr("must be an object with a whole number \"label\""));
}

TEST_F(ImageLoader, RawPixelsOfAnotherLengthAreRefused) {
  write("i0.raw", std::string(359, 'x'));
  write("i0.cls", "1");
  expect_failure({}, AllOf(HasSubstr("359 bytes"), HasSubstr("12 x 10 pixels of 3 channels")));
}

TEST_F(ImageLoader, OtherPicturesAreNamed) {
  write("i0.cls", "1");
  write("i0.jpg", "RIFFsizeWEBPVP8 ");
  expect_failure({}, AllOf(HasSubstr("the part 'jpg' is WebP"), HasSubstr("resize_images.py")));
}

TEST_F(ImageLoader, RawPixelsMayHaveAnyNumberOfChannels) {
  write("i0.raw", std::string(12 * 10, 'x'));
  write("i0.cls", "1");
  ImageOptions options;
  options.channels = 1;
  Loader loader(pack(), {.ranks = 1, .cap = 4}, 0, nullptr, images(options));
  EXPECT_EQ((*loader.begin()).images.sizes(), (std::vector<std::int64_t>{1, 1, 12, 10}));
}

TEST(NormaliseImages, TakesVolumes) {
  const auto volumes = torch::randint(0, 256, {2, 1, 3, 4, 5}, torch::kUInt8);
  const auto normal = normalise_images(volumes, {.mean = {0.5}, .deviation = {0.25}});
  EXPECT_TRUE(torch::allclose(normal, (volumes.to(torch::kFloat32) / 255 - 0.5) / 0.25, 1e-5, 1e-5));
}

TEST(NormaliseImages, SubtractsTheMeanAndDividesByTheDeviationOfEachChannel) {
  const auto images = torch::randint(0, 256, {2, 5, 4, 3}, torch::kUInt8).permute({0, 3, 1, 2});
  const auto normal = normalise_images(images);
  ASSERT_EQ(normal.sizes(), images.sizes());
  EXPECT_TRUE(normal.is_contiguous(torch::MemoryFormat::ChannelsLast));
  const double mean[] = {0.485, 0.456, 0.406};
  const double deviation[] = {0.229, 0.224, 0.225};
  for (std::int64_t c = 0; c < 3; ++c) {
    const auto expected = (images.select(1, c).to(torch::kFloat64) / 255 - mean[c]) / deviation[c];
    EXPECT_LT((normal.select(1, c) - expected).abs().max().item<double>(), 1e-5) << "channel " << c;
  }
  EXPECT_EQ(normalise_images(images, {}, torch::kBFloat16).scalar_type(), torch::kBFloat16);
  EXPECT_THROW(normalise_images(images.to(torch::kFloat32)), UsageError);
  EXPECT_THROW(normalise_images(images.select(0, 0)), UsageError);
  EXPECT_THROW(normalise_images(images.narrow(1, 0, 1)), UsageError);
  const auto grey = normalise_images(images.narrow(1, 0, 1), {.mean = {0.5}, .deviation = {0.5}});
  EXPECT_EQ(grey.size(1), 1);
}

TEST(CropAndScale, KeepsFlatImagesFlatAndAveragesWhenItShrinks) {
  const ImageSize from{.height = 16, .width = 24};
  const ImageSize small{.height = 4, .width = 6};
  Pixels pixels(from.bytes(), 77);
  Pixels scaled(small.bytes());
  crop_and_scale(pixels, from, 3, {.top = 0, .left = 0, .size = from}, scaled, small);
  EXPECT_THAT(scaled, ::testing::Each(77));
  std::mt19937 random(1);
  double sum = 0;
  for (std::uint8_t& pixel : pixels) sum += pixel = static_cast<std::uint8_t>(random() % 256);
  crop_and_scale(pixels, from, 3, {.top = 0, .left = 0, .size = from}, scaled, small);
  double scaled_sum = 0;
  for (const std::uint8_t pixel : scaled) scaled_sum += pixel;
  EXPECT_NEAR(scaled_sum / static_cast<double>(small.bytes()), sum / static_cast<double>(from.bytes()), 6);
  // Enlarging keeps a straight line straight.
  const ImageSize line{.height = 1, .width = 3};
  const ImageSize longer{.height = 1, .width = 6};
  const Pixels ramp = {0, 100, 200};
  Pixels out(6);
  crop_and_scale(ramp, line, 1, {.top = 0, .left = 0, .size = line}, out, longer);
  EXPECT_THAT(out, ::testing::ElementsAre(0, 25, 75, 125, 175, 200));
  EXPECT_THROW(crop_and_scale(ramp, line, 1, {.top = 0, .left = 1, .size = line}, out, longer), UsageError);
  EXPECT_THROW(crop_and_scale(ramp, line, 3, {.top = 0, .left = 0, .size = line}, out, longer), UsageError);
}

// Figures drawn with noise: a cross, a square, a bar. A linear network tells them apart after some epochs.
TEST_F(ImageLoader, ANetworkLearnsFromItsImages) {
  std::mt19937 random(3);
  for (std::size_t i = 0; i < 120; ++i) {
    const std::size_t figure = i % 3;
    Pixels pixels(kSize.bytes());
    for (std::size_t y = 0; y < 12; ++y) {
      for (std::size_t x = 0; x < 10; ++x) {
        const bool cross = y == 6 || x == 5;
        const bool square = (y == 2 || y == 9 || x == 1 || x == 8) && y > 1 && y < 10 && x > 0 && x < 9;
        const bool bar = x > 6;
        const bool on = figure == 0 ? cross : figure == 1 ? square : bar;
        for (std::size_t c = 0; c < 3; ++c) {
          pixels[(y * 10 + x) * 3 + c] = static_cast<std::uint8_t>((on ? 150 : 20) + random() % 90);
        }
      }
    }
    write(fmt::format("i{:03}.png", i), png_of(pixels, kSize));
    write(fmt::format("i{:03}.cls", i), std::to_string(figure));
  }
  torch::manual_seed(1);
  torch::nn::Linear net(3 * 12 * 10, 3);
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  Loader loader(pack(), {.ranks = 1, .cap = 16}, 0, nullptr, images());
  std::int64_t right = 0;
  for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
    right = 0;
    loader.set_epoch(epoch);
    for (const Batch& batch : loader) {
      const auto logits = net(normalise_images(batch.images).flatten(1));
      right += (logits.argmax(1) == batch.labels).sum().item<std::int64_t>();
      torch::nn::functional::cross_entropy(logits, batch.labels).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  EXPECT_GT(right, 110) << "of 120 in the last epoch";
}

}  // namespace
}  // namespace lockstep::data
