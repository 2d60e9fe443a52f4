// Lockstep's part of bench_loader: makes a pack of tokens, writes the planner's batches to a file, and
// measures how many batches per second the loader delivers. It also measures the bandwidth of memcpy.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/files.h"
#include "common/statistics.h"
#include "common/tool.h"
#include "runtime/data/loader.h"
#include "runtime/data/plan/order/random.h"
#include "runtime/data/plan/planner.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/create.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct Options {
  fs::path folder;
  std::uint64_t tokens = 16'000'000;
  data::PlanOptions plan{.cap = 16'384, .cost = {.a = 24'576, .b = 1}};
  int workers = 1;
  int batches_ahead = 4;
  int epochs = 5;
  bool read = false;
};

// Between 8 and 8,200 tokens. As in text, most samples are short, and most tokens are in long samples.
std::uint32_t length_of(data::Random& random) {
  const std::uint64_t scale = random.below(8) + random.below(4);
  return static_cast<std::uint32_t>(8 + random.below(std::uint64_t{8} << scale));
}

void make_pack(const Options& options) {
  const fs::path files = options.folder / "files";
  fs::create_directories(files);
  pack::CreateOptions create;
  create.folder = files;
  create.out = options.folder / "pack";
  create.token_bytes = 2;
  data::Random random(1, 0, 0);
  std::string bytes;
  for (std::uint64_t made = 0; made < options.tokens;) {
    const std::uint32_t length = length_of(random);
    bytes.resize(2 * std::size_t{length});
    for (std::uint32_t i = 0; i < length; ++i) {
      const auto token = static_cast<std::uint16_t>(random.below(50'000));
      std::memcpy(bytes.data() + 2 * std::size_t{i}, &token, sizeof token);
    }
    create.files.push_back(fmt::format("{:07}.tok", create.files.size()));
    std::ofstream(files / create.files.back(), std::ios::binary) << bytes;
    made += length;
  }
  pack::create(create);
  fs::remove_all(files);
}

// Writes for the peer the place of each sample and the samples of each batch.
void write_batches(const Options& options) {
  const auto reader = pack::open(options.folder / "pack");
  const auto lengths = data::lengths_from_pack(*reader, "the pack");
  nlohmann::json samples = nlohmann::json::array();
  for (std::size_t i = 0; i < reader->size(); ++i) {
    const pack::Part part = reader->parts(i).front();
    samples.push_back({part.shard, part.offset, part.bytes});
  }
  const data::Plan plan = data::make_plan(lengths.tokens, options.plan);
  nlohmann::json batches = nlohmann::json::array();
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    for (std::size_t m = 0; m < plan.micro_batches(step, 0); ++m) {
      const auto ids = plan.micro_batch(step, 0, m);
      batches.push_back(std::vector<data::SampleId>(ids.begin(), ids.end()));
    }
  }
  write_file_atomically(options.folder / "batches.json",
                        nlohmann::json{{"samples", samples}, {"batches", batches}}.dump());
}

// The bytes per second that one thread copies from memory outside the caches.
double memcpy_bytes_per_second() {
  constexpr std::size_t kBytes = std::size_t{64} << 20U;
  std::vector<char> from(kBytes, 1);
  std::vector<char> to(kBytes, 2);
  std::vector<double> rates;
  for (int round = 0; round < 7; ++round) {
    const std::uint64_t begin = monotonic_ns();
    std::memcpy(to.data(), from.data(), kBytes);
    asm volatile("" : : "r"(to.data()) : "memory");  // keeps the copy
    rates.push_back(kBytes / seconds_between(begin, monotonic_ns()));
  }
  return median(rates);
}

// The size of a batch's tensors.
std::size_t bytes_of(const data::Batch& batch) {
  std::size_t bytes = 0;
  for (const torch::Tensor* tensor :
       {&batch.tokens, &batch.positions, &batch.loss_mask, &batch.cu_seqlens, &batch.sample_ids}) {
    bytes += tensor->nbytes();
  }
  return bytes;
}

// Measures a loop that does nothing with its batches.
void measure(const Options& options) {
  const auto reader = pack::open(options.folder / "pack");
  data::Loader loader(
      *reader, options.plan, 0, nullptr,
      {.workers = options.workers, .batches_ahead = options.batches_ahead, .mapped = !options.read});
  std::vector<double> tokens_per_second;
  std::vector<double> bytes_per_second;
  std::vector<double> memcpy_rates;
  for (int epoch = 0; epoch <= options.epochs; ++epoch) {
    if (epoch > 0) memcpy_rates.push_back(memcpy_bytes_per_second());
    std::uint64_t tokens = 0;
    std::size_t bytes = 0;
    loader.set_epoch(static_cast<std::uint64_t>(epoch));
    // The clock starts after the batches that were built before the loop.
    std::uint64_t begin = 0;
    int batches = 0;
    for (const data::Batch& batch : loader) {
      if (++batches <= options.batches_ahead) continue;
      if (begin == 0) {
        begin = monotonic_ns();
        continue;
      }
      tokens += static_cast<std::uint64_t>(batch.token_count);
      bytes += bytes_of(batch);
    }
    if (epoch == 0) continue;  // the first epoch allocates buffers and fills the page cache
    const double seconds = seconds_between(begin, monotonic_ns());
    tokens_per_second.push_back(static_cast<double>(tokens) / seconds);
    bytes_per_second.push_back(static_cast<double>(bytes) / seconds);
  }
  const double tokens = median(tokens_per_second);
  Tool::print({{"bench", "loader"},
               {"implementation", "lockstep"},
               {"workers", options.workers},
               {"build_seconds", loader.advice().build_seconds},
               {"tokens_per_second", tokens},
               {"bytes_per_second", median(bytes_per_second)},
               {"packed_bytes_per_second", tokens * reader->token_bytes()},
               {"memcpy_bytes_per_second", median(memcpy_rates)}});
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  bool make = false;
  lockstep::Tool tool("bench_loader_lockstep",
                      "Measures how fast the loader delivers batches; see bench_loader.");
  tool.app().add_option("--folder", options.folder, "Folder of the pack and its batches")->required();
  tool.app().add_flag("--make", make, "Make the pack and its batches");
  tool.app().add_option("--tokens", options.tokens, "Tokens of the pack");
  tool.app().add_option("--cap", options.plan.cap, "Maximum tokens of a batch");
  tool.app().add_option("--workers", options.workers, "Worker threads");
  tool.app().add_flag("--read", options.read, "Read samples instead of mapping their shards");
  tool.app().add_option("--epochs", options.epochs, "Epochs; the median is printed");
  return tool.run(argc, argv, [&] {
    if (make) {
      lockstep::make_pack(options);
      lockstep::write_batches(options);
    } else {
      lockstep::measure(options);
    }
  });
}
