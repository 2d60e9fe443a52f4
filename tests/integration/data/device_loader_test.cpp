// The loader's copies to a device, on a GPU or a simulated one (tests/device) if there is one, else on the CPU.
// LOCKSTEP_TEST_DEVICE names the type of device that there must be.
#include <cstring>
#include <limits>

#include "runtime/data/batch/batch_builder.h"
#include "runtime/data/epoch_cursor.h"
#include "runtime/data/loader_setup.h"
#include "tests/integration/data/loader_fixture.h"
#include "tests/integration/device_for_tests.h"

namespace lockstep::data {
namespace {

torch::Device device() {
  return testing::device_for_tests(0).type();
}

bool same(const torch::Tensor& on_cpu, const torch::Tensor& on_device) {
  if (!on_cpu.defined()) return !on_device.defined();
  return on_device.device().type() == device().type() && on_device.scalar_type() == on_cpu.scalar_type() &&
         torch::equal(on_cpu, on_device.cpu());
}

constexpr auto kTensors = {&Batch::tokens,     &Batch::positions, &Batch::loss_mask, &Batch::attention_mask,
                           &Batch::cu_seqlens, &Batch::images,    &Batch::targets,   &Batch::labels};

// The device is kept busy, so that a copy that the computing stream did not wait for would be seen.
void expect_same_batches(const pack::Reader& reader, const PlanOptions& plan, LoaderOptions options = {}) {
  Loader host(reader, plan, 0, nullptr, options);
  options.batches_ahead = 2;
  options.device = device();
  Loader copied(reader, plan, 0, nullptr, options);
  EXPECT_EQ(copied.memory().page_locked, !device().is_cpu());
  const auto matrix = torch::randn({device().is_cuda() ? 4096 : 64, device().is_cuda() ? 4096 : 64},
                                   torch::TensorOptions(device()));
  std::vector<Batch> expected;
  std::vector<Batch> found;  // compared at the end, when their host buffers have been reused
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    host.set_epoch(epoch);
    copied.set_epoch(epoch);
    for (const Batch& batch : host) expected.push_back(batch);
    for (const Batch& batch : copied) {
      torch::mm(matrix, matrix);
      found.push_back(batch);
      for (const auto tensor : kTensors) {
        if ((batch.*tensor).defined()) found.back().*tensor = (batch.*tensor).clone();
      }
    }
  }
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].loss_tokens, expected[i].loss_tokens) << i;
    int number = 0;
    for (const auto tensor : kTensors) {
      EXPECT_TRUE(same(expected[i].*tensor, found[i].*tensor)) << "batch " << i << ", tensor " << number;
      ++number;
    }
  }
}

TEST_F(LoaderTest, BatchesOnTheDeviceAreThoseOfTheCpu) {
  for (const bool padded : {false, true}) {
    PlanOptions plan = alone();
    plan.padded = padded;
    expect_same_batches(*reader_, plan);
  }
}

// Tokens of all widths, shorter samples, and a loss mask that only the transform knows.
TEST_F(LoaderTest, BatchesOnTheDeviceHaveTheTransformsTokensAndMask) {
  LoaderOptions options{.padding_token = -1};
  options.transform = [](Sample& sample) {
    constexpr std::int64_t kFirst[] = {65535, 65536, -100, std::int64_t{1} << 40, 7};
    sample.tokens[0] = kFirst[sample.id % 5];
    sample.loss_mask[sample.tokens.size() / 2] = false;
    sample.tokens = sample.tokens.first((sample.tokens.size() + 1) / 2);
  };
  for (const bool padded : {false, true}) {
    PlanOptions plan = alone();
    plan.padded = padded;
    plan.cap = kLongest;  // few samples in a batch, so that batches differ in width
    expect_same_batches(*reader_, plan, options);
  }
}

TEST(Narrow, UsesTheFewestBytesThatHoldAllTokens) {
  const auto bytes_with = [](std::int64_t token) {
    std::vector<std::int64_t> tokens(1000, 3);  // several blocks
    tokens[777] = token;
    const std::vector<std::int64_t> before = tokens;
    const std::size_t bytes = narrow(tokens);
    std::vector<std::int64_t> read(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto* const at = reinterpret_cast<const std::byte*>(tokens.data()) + i * bytes;
      std::uint16_t u16 = 0;
      std::int32_t i32 = 0;
      if (bytes == 2) std::memcpy(&u16, at, 2), read[i] = u16;
      if (bytes == 4) std::memcpy(&i32, at, 4), read[i] = i32;
      if (bytes == 8) read[i] = tokens[i];
    }
    EXPECT_EQ(read, before) << token;
    return bytes;
  };
  constexpr std::int64_t k31 = std::int64_t{1} << 31;
  for (const std::int64_t token : {std::int64_t{0}, std::int64_t{65535}}) EXPECT_EQ(bytes_with(token), 2U);
  for (const std::int64_t token : {std::int64_t{65536}, std::int64_t{-1}, k31 - 1, -k31})
    EXPECT_EQ(bytes_with(token), 4U);
  for (const std::int64_t token : {k31, -k31 - 1, std::numeric_limits<std::int64_t>::min()})
    EXPECT_EQ(bytes_with(token), 8U);
}

// Positions and masks follow from the lengths, so a token of 16 bits is 2 bytes on the way instead of 17 to 18.
TEST_F(LoaderTest, OnlyNarrowTokensAndLengthsTravelToADevice) {
  PlanOptions plan = alone();
  const Lengths lengths = planned_lengths(*reader_, plan, {});
  const LengthsInMemory source(lengths.tokens, lengths.fingerprint);
  EpochCursor cursor([&](const PlanOptions& epoch) { return make_planner(source, epoch, {}); },
                     {.plan = plan, .rank = 0});
  cursor.move_to(0, nullptr);
  const auto first = cursor.next();
  ASSERT_TRUE(first);
  BuildOptions options;
  options.plan = plan;
  options.mapped = false;
  options.for_device = true;
  BatchBuilder builder(*reader_, lengths.tokens, options);
  const HostBatch host = builder.build(*first, 0);
  const auto tokens = static_cast<std::size_t>(host.batch.token_count);
  const auto samples = static_cast<std::size_t>(host.batch.sample_ids.numel());
  ASSERT_GT(tokens, 64U);
  EXPECT_LE(host.used, 2 * tokens + 4 * (samples + 1) + 64);
  EXPECT_LT(builder.buffers().capacity(), BatchBuilder::buffer_bytes(plan, false));
}

// Volumes of int16 with one mask of bytes and one label each.
TEST_F(LoaderTest, VolumesTargetsAndLabelsOnTheDeviceAreThoseOfTheCpu) {
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directories(folder_ / "files");
  pack::CreateOptions create;
  create.folder = folder_ / "files";
  create.out = folder_ / "pack";
  create.threads = 1;
  const auto write = [&](const std::string& name, const std::string& content) {
    std::ofstream(create.folder / name, std::ios::binary) << content;
    create.files.push_back(name);
  };
  constexpr std::size_t kVoxels = 3 * 4 * 5;
  for (int i = 0; i < 9; ++i) {
    std::vector<std::int16_t> voxels(kVoxels);
    std::string mask;
    for (std::size_t v = 0; v < kVoxels; ++v) {
      voxels[v] = static_cast<std::int16_t>(-1000 + 37 * i + static_cast<int>(v));
      mask += static_cast<char>((v + static_cast<std::size_t>(i)) % 200);
    }
    write(fmt::format("c{}.cls", i), std::to_string(i));
    write(fmt::format("c{}.ct", i), {reinterpret_cast<const char*>(voxels.data()), 2 * kVoxels});
    write(fmt::format("c{}.mask", i), mask);
  }
  pack::create(create);
  reader_ = pack::open(create.out);
  ImageOptions images{.size = {.height = 4, .width = 5, .depth = 3}, .channels = 1, .type = PixelType::int16};
  images.target = TargetOptions{.part = "mask"};
  LoaderOptions options;
  options.images = images;
  PlanOptions plan = alone();
  plan.cap = 4;
  expect_same_batches(*reader_, plan, options);
}

}  // namespace
}  // namespace lockstep::data
