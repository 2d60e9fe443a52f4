// Damaged samples are left out if the program allows it, and nothing else changes; pixels that begin like an image, and
// images that the camera did not hold upright.
#include <set>
#include <stdexcept>

#include "exporters/record/record.h"
#include "runtime/profile/step_timer.h"
#include "tests/integration/data/image_loader_fixture.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

// The step of each micro-batch, and whether it is the last one: damage must not change them.
using Schedule = std::vector<std::pair<std::int64_t, bool>>;

class DamagedImages : public ImageLoader {
 protected:
  DamagedImages() { write_all(); }

  void damage(std::size_t number, const char* kind) const {
    const auto file = folder_ / "files" / fmt::format("i{:03}.{}", number, kind);
    write_file_atomically(file, read_text_file(file).substr(0, 60));
  }
  static LoaderOptions allowing(std::uint64_t samples) {
    LoaderOptions options = images();
    options.skip_damaged = samples;
    return options;
  }
  Schedule schedule_of(std::uint64_t cap, std::uint64_t allowed) {
    Schedule schedule;
    Loader loader(pack(), plan(cap), 0, nullptr, allowing(allowed));
    for (const Batch& batch : loader) schedule.emplace_back(batch.step, batch.last_of_step);
    return schedule;
  }
};

TEST_F(DamagedImages, AreLeftOutAndNamedAndTheOthersStay) {
  const Schedule whole = schedule_of(7, 0);
  damage(3, "png");
  damage(5, "raw");
  damage(16, "jpg");
  write_file_atomically(folder_ / "files/i020.cls", "no number");
  ::testing::internal::CaptureStderr();
  std::set<std::int64_t> seen;
  std::int64_t skipped = 0;
  Schedule schedule;
  {
    Loader loader(pack(), plan(), 0, nullptr, allowing(4));
    for (int epoch = 0; epoch < 2; ++epoch) {
      loader.set_epoch(static_cast<std::uint64_t>(epoch));
      for (const Batch& batch : loader) {
        const std::int64_t count = batch.sample_ids.size(0);
        EXPECT_EQ(batch.images.size(0), count);
        EXPECT_EQ(batch.labels.size(0), count);
        EXPECT_EQ(batch.token_count, count);
        EXPECT_EQ(batch.loss_tokens, count);
        EXPECT_EQ(batch.empty, count == 0);
        skipped += batch.skipped;
        if (epoch == 0) schedule.emplace_back(batch.step, batch.last_of_step);
        for (std::int64_t i = 0; i < count; ++i) {
          const auto number = batch.sample_ids[i].item<std::int64_t>();
          seen.insert(number);
          EXPECT_EQ(batch.labels[i].item<std::int64_t>(), 7 * number);
          EXPECT_NEAR(batch.images[i][0][0][0].item<int>(), static_cast<int>(number), 6);
        }
      }
    }
  }
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(skipped, 2 * 4);
  EXPECT_EQ(seen.size(), kImages - 4);
  EXPECT_EQ(schedule, whole);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 4) << lines;
  for (const char* const name : {"sample 'i003' (number 3): cannot decode PNG", "'i005' (number 5)",
                                 "'i016' (number 16): cannot decode JPEG", "'i020' (number 20): the label",
                                 "(file shard-000000.tar): left out, 4 of at most 4 on this rank"})
    EXPECT_THAT(lines, HasSubstr(name));
}

TEST_F(DamagedImages, EndTheLoopIfTheyAreMoreThanAllowed) {
  for (const std::size_t number : {3U, 9U, 15U}) damage(number, "png");
  ::testing::internal::CaptureStderr();
  Loader loader(pack(), plan(), 0, nullptr, allowing(2));
  EXPECT_THAT(
      [&] {
        for (const Batch& batch : loader) (void)batch;
      },
      ThrowsMessage<Error>(AllOf(HasSubstr("sample 'i0"), HasSubstr("(file shard-000000.tar)"),
                                 HasSubstr("than the 2 that LoaderOptions::skip_damaged allows"))));
  ::testing::internal::GetCapturedStderr();
}

TEST_F(DamagedImages, LeaveAnEmptyMicroBatchIfThereIsNoOther) {
  const Schedule whole = schedule_of(1, 0);
  damage(6, "png");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(schedule_of(1, 1), whole);
  Loader loader(pack(), plan(1), 0, nullptr, allowing(1));
  int empty = 0;
  for (const Batch& batch : loader) {
    if (!batch.empty) continue;
    ++empty;
    EXPECT_EQ(batch.images.size(0), 0);
    EXPECT_EQ(batch.loss_tokens, 0);
  }
  EXPECT_EQ(empty, 1);
  ::testing::internal::GetCapturedStderr();
}

TEST_F(DamagedImages, AnErrorOfATransformIsNotOne) {
  LoaderOptions options = allowing(kImages);
  options.images->transform = [](ImageSample&) { throw std::runtime_error("in the transform"); };
  Loader loader(pack(), plan(), 0, nullptr, options);
  EXPECT_THAT([&] { loader.begin(); }, ThrowsMessage<Error>(HasSubstr("in the transform")));
}

TEST_F(DamagedImages, AreCountedInTheRecord) {
  damage(3, "png");
  damage(9, "png");
  const lockstep::testing::TemporaryFolder folder;
  profile::StepTimer timer({.node = "n1", .program = "test"}, {.folder = folder.path()});
  const record::Reader record(timer.file());
  ::testing::internal::CaptureStderr();
  Loader loader(pack(), plan(), 0, &timer, allowing(2));
  for (const Batch& batch : loader) {
    if (batch.last_of_step) timer.end_step({.tokens = 1});
  }
  ::testing::internal::GetCapturedStderr();
  timer.finish();
  EXPECT_EQ(record.read(0).resources.value().skipped_samples, 2U);
}

// Sample 7 cannot be read.
TEST_F(LoaderTest, ADamagedSampleOfTokensIsLeftOut) {
  const WatchedReader damaged(*reader_, [](std::size_t number) {
    if (number == 7) throw Error("shard-000000.tar: damaged");
  });
  for (const bool padded : {false, true}) {
    PlanOptions plan = alone();
    plan.padded = padded;
    std::vector<std::int64_t> wanted(kSamples, 1);
    wanted[7] = 0;
    std::vector<std::int64_t> seen(kSamples);
    std::int64_t skipped = 0;
    ::testing::internal::CaptureStderr();
    Loader loader(damaged, plan, 0, nullptr, {.workers = 2, .skip_damaged = 1});
    for (const Batch& batch : loader) {
      skipped += batch.skipped;
      const std::int64_t count = batch.sample_ids.size(0);
      ASSERT_EQ(batch.cu_seqlens.size(0), count + 1);
      EXPECT_EQ(batch.cu_seqlens[count].item<std::int64_t>(), batch.token_count);
      EXPECT_EQ(batch.loss_mask.sum().item<std::int64_t>(), batch.loss_tokens);
      EXPECT_EQ(batch.loss_tokens, batch.token_count - count);
      EXPECT_EQ(batch.tokens.size(0), padded ? count : batch.token_count);
      for (std::int64_t i = 0; i < count; ++i) {
        const auto sample = static_cast<std::size_t>(batch.sample_ids[i].item<std::int64_t>());
        ++seen[sample];
        const torch::Tensor first =
            padded ? batch.tokens[i][0] : batch.tokens[batch.cu_seqlens[i].item<std::int64_t>()];
        EXPECT_EQ(first.item<std::int64_t>(), token_of(sample, 0));
      }
    }
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr("sample 's007' (number 7)"), HasSubstr("left out, 1 of at most 1")));
    EXPECT_EQ(skipped, 1);
    EXPECT_EQ(seen, wanted);
  }
}

TEST_F(ImageLoader, RawPixelsMayBeginLikeAnImage) {
  for (const std::string begin : {"\xff\xd8\xff\xe0", "\x89PNG\r\n\x1a\n"}) {
    for (const std::string kind : {".raw", ".rgb8", ".a.bin", ""}) {
      files_.clear();
      Pixels pixels = picture(1);
      std::copy(begin.begin(), begin.end(), pixels.begin());
      write("i000" + kind, {pixels.begin(), pixels.end()});
      ImageOptions options;
      options.label = "";
      Loader loader(pack(), plan(), 0, nullptr, images(options));
      const Batch& batch = *loader.begin();
      EXPECT_EQ(batch.images[0][1][0][0].item<int>(), pixels[1]) << kind;
      EXPECT_EQ(batch.images[0][2][11][9].item<int>(), pixels.back()) << kind;
    }
  }
}

// EXIF of one entry, the orientation.
std::string turned(const std::string& jpeg, char orientation) {
  using namespace std::string_literals;
  const std::string segment = "\xff\xe1\0\x22"s + "Exif\0\0"s +
                              "II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"s + orientation +
                              "\0\0\0\0\0\0\0"s;
  return jpeg.substr(0, 20) + segment + jpeg.substr(20);  // after the header's first segment
}

TEST_F(ImageLoader, TheFirstImageThatIsNotUprightIsNamedOnce) {
  for (std::size_t i = 0; i < kImages; ++i) {
    const std::string jpeg = jpeg_of(picture(i), kSize);
    write(fmt::format("i{:03}.jpg", i), i < 5 ? turned(jpeg, 1) : turned(jpeg, 6));
  }
  ImageOptions options;
  options.label = "";
  ::testing::internal::CaptureStderr();
  {
    Loader loader(pack(), plan(), 0, nullptr, images(options));
    for (const Batch& batch : loader) (void)batch;
  }
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << lines;
  EXPECT_THAT(lines, AllOf(HasSubstr("has the EXIF orientation 6"),
                           HasSubstr("resize_images.py --orientation apply"), Not(HasSubstr("'i00"))));
}

}  // namespace
}  // namespace lockstep::data
