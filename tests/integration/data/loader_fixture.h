// A pack of samples with known tokens, for the tests of the loader.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/data/loader.h"
#include "runtime/data/plan/planner.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/create.h"
#include "tests/archive_in_memory.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::data {

using testing::world;

inline constexpr std::size_t kSamples = 101;
inline constexpr std::int64_t kLongest = 60;

inline std::string state_of(const Loader& loader) {
  auto saved = testing::saved_by([&](auto& archive) { loader.save(archive); });
  c10::IValue state;
  saved.read("state", state);
  return state.toStringRef();
}
inline void resume(Loader& loader, const std::string& state) {
  testing::load_from(loader, [&](auto& archive) { archive.write("state", c10::IValue(state)); });
}

inline std::int64_t length_of(std::size_t sample) {
  return 1 + static_cast<std::int64_t>(sample * 37 % kLongest);
}
inline std::int64_t token_of(std::size_t sample, std::int64_t position) {
  return static_cast<std::int64_t>(sample) * 100 + position;
}

// A reader that calls a function before each read.
class WatchedReader : public pack::Reader {
 public:
  WatchedReader(const pack::Reader& reader, std::function<void(std::size_t)> before)
      : reader_(reader), before_(std::move(before)) {}
  std::size_t size() const override { return reader_.size(); }
  std::uint64_t bytes(std::size_t i) const override { return reader_.bytes(i); }
  std::uint64_t tokens(std::size_t i) const override { return reader_.tokens(i); }
  int token_bytes() const override { return reader_.token_bytes(); }
  std::string_view key(std::size_t i) const override { return reader_.key(i); }
  void read(std::size_t i, std::span<std::byte> into) const override {
    before_(i);
    reader_.read(i, into);
  }
  std::span<const std::byte> view(std::size_t i) const override {
    before_(i);
    return reader_.view(i);
  }
  // So that the loader calls read(), from its workers only.
  bool can_view() const override { return false; }
  bool safe_to_map() const override { return reader_.safe_to_map(); }
  std::vector<pack::Part> parts(std::size_t i) const override { return reader_.parts(i); }
  void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const override {
    reader_.read_part(i, p, into);
  }
  std::string fingerprint() const override { return reader_.fingerprint(); }
  void verify(const pack::ReadProgress& progress) const override { reader_.verify(progress); }

 private:
  const pack::Reader& reader_;
  std::function<void(std::size_t)> before_;
};

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() : folder_(::testing::TempDir() + "loader_test_" + std::to_string(getpid())) {
    reader_ = make<std::uint16_t>(2);
  }
  ~LoaderTest() override { std::filesystem::remove_all(folder_); }

  // A pack of kSamples samples named s000, s001, ...
  template <typename Token>
  std::unique_ptr<pack::Reader> make(int token_bytes) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "files");
    pack::CreateOptions options;
    options.folder = folder_ / "files";
    options.out = folder_ / "pack";
    options.token_bytes = token_bytes;
    options.threads = 1;
    for (std::size_t i = 0; i < kSamples; ++i) {
      options.files.push_back(fmt::format("s{:03}.tok", i));
      std::ofstream file(options.folder / options.files.back(), std::ios::binary);
      for (std::int64_t p = 0; p < length_of(i); ++p) {
        const auto token = static_cast<Token>(token_of(i, p));
        file.write(reinterpret_cast<const char*>(&token), sizeof token);
      }
    }
    pack::create(options);
    return pack::open(options.out);
  }

  static PlanOptions options(std::uint64_t cap = 128, int accumulate = 2) {
    return {.cap = cap, .accumulate = accumulate, .cost = {10, 1}};
  }

  static PlanOptions alone() {
    PlanOptions plan = options();
    plan.ranks = 1;
    return plan;
  }

  std::filesystem::path folder_;
  std::unique_ptr<pack::Reader> reader_;
};

// How often each sample was seen on all ranks.
inline std::vector<std::int64_t> seen_on_all_ranks(Loader& loader) {
  std::vector<std::int64_t> seen(kSamples);
  for (const Batch& batch : loader) {
    for (std::int64_t i = 0; i < batch.sample_ids.size(0); ++i) {
      ++seen[static_cast<std::size_t>(batch.sample_ids[i].item<std::int64_t>())];
    }
  }
  world().communicator().all_reduce({seen.data(), seen.size(), comm::DataType::i64}, "samples seen")->wait();
  return seen;
}

// The samples of this rank in at most `steps` steps.
inline std::vector<std::int64_t> take(Loader& loader, std::uint64_t steps) {
  std::vector<std::int64_t> ids;
  if (steps == 0) return ids;
  for (const Batch& batch : loader) {
    const auto* data = batch.sample_ids.data_ptr<std::int64_t>();
    ids.insert(ids.end(), data, data + batch.sample_ids.size(0));
    if (batch.last_of_step && --steps == 0) break;
  }
  return ids;
}

// The samples of a packed batch are end to end, each with its tokens.
inline void expect_packed_samples(const Batch& batch) {
  const std::int64_t samples = batch.sample_ids.size(0);
  ASSERT_EQ(batch.cu_seqlens.size(0), samples + 1);
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto id = static_cast<SampleId>(batch.sample_ids[i].item<std::int64_t>());
    const auto sample = static_cast<std::size_t>(sample_of(id)) % kSamples;
    const auto begin = batch.cu_seqlens[i].item<std::int32_t>();
    ASSERT_EQ(batch.cu_seqlens[i + 1].item<std::int32_t>() - begin, length_of(sample));
    for (std::int64_t t = 0; t < length_of(sample); ++t) {
      ASSERT_EQ(batch.tokens[begin + t].item<std::int64_t>(), token_of(sample, t));
    }
  }
}

// The samples of `steps` steps on each of `ranks`, one after the other; sets `state` to the state after them.
inline std::vector<std::int64_t> take_on_ranks(const pack::Reader& reader, PlanOptions plan, int ranks,
                                               std::uint64_t steps, std::string& state,
                                               const LoaderOptions& options = {.workers = 1}) {
  std::vector<std::int64_t> ids;
  plan.ranks = ranks;
  std::string after;
  for (int rank = 0; rank < ranks; ++rank) {
    Loader loader(reader, plan, rank, nullptr, options);
    if (!state.empty()) resume(loader, state);
    const auto mine = take(loader, steps);
    ids.insert(ids.end(), mine.begin(), mine.end());
    EXPECT_TRUE(rank == 0 || after == state_of(loader)) << "rank " << rank << " is at another position";
    after = state_of(loader);
  }
  state = after;
  return ids;
}

inline constexpr std::uint64_t kAll = ~std::uint64_t{0};

}  // namespace lockstep::data
