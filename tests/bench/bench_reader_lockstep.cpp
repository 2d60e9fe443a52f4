// Lockstep's part of bench_reader: makes a pack, and measures how fast samples are read from it, in order or
// at random, by pointers into mappings, by the reader's pread, and by pread(2) alone.

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/files.h"
#include "common/tool.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/create.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct Options {
  fs::path folder;
  std::size_t samples = 100'000;
  std::size_t bytes = 2048;
  std::string way = "view";
  std::string access = "random";
  int threads = 1;
  double seconds = 1;
};

void make_pack(const Options& options) {
  const fs::path files = options.folder / "files";
  fs::create_directories(files);
  pack::CreateOptions create;
  create.folder = files;
  create.out = options.folder / "pack";
  create.shard_bytes = std::uint64_t{64} << 20;
  std::mt19937_64 random(1);
  std::string content(options.bytes, '\0');
  for (std::size_t i = 0; i < options.samples; ++i) {
    for (char& byte : content) byte = static_cast<char>(random());
    create.files.push_back(fmt::format("{:07}.bin", i));
    std::ofstream(files / create.files.back(), std::ios::binary) << content;
  }
  pack::create(create);
  fs::remove_all(files);
}

/// The baseline without a library: the program knows where each sample is and reads it.
class PlainFiles {
 public:
  PlainFiles(const fs::path& folder, const pack::Reader& reader) {
    std::map<std::string, int> opened;
    for (std::size_t i = 0; i < reader.size(); ++i) {
      const pack::Part part = reader.parts(i).front();
      if (!opened.contains(part.shard)) {
        files_.push_back(open_file(folder / part.shard, O_RDONLY));
        opened[part.shard] = files_.back().get();
      }
      places_.push_back({.fd = opened[part.shard], .offset = part.offset, .bytes = part.bytes});
    }
  }
  std::size_t read(std::size_t i, std::vector<std::byte>& into) const {
    const Place& place = places_[i];
    if (::pread(place.fd, into.data(), place.bytes, static_cast<off_t>(place.offset)) !=
        static_cast<ssize_t>(place.bytes))
      fail_errno("pread");
    return place.bytes;
  }

 private:
  struct Place {
    int fd;
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  std::vector<UniqueFd> files_;
  std::vector<Place> places_;
};

using ReadOne = std::function<std::size_t(std::size_t, std::vector<std::byte>&)>;

ReadOne way_to_read(const Options& options, const pack::Reader& reader) {
  if (options.way == "view") {  // copied, as into a batch
    return [&reader](std::size_t i, std::vector<std::byte>& into) {
      const auto sample = reader.view(i);
      std::memcpy(into.data(), sample.data(), sample.size());
      return sample.size();
    };
  }
  if (options.way == "read") {
    return [&reader](std::size_t i, std::vector<std::byte>& into) {
      const std::size_t bytes = reader.bytes(i);
      reader.read(i, std::span(into).first(bytes));
      return bytes;
    };
  }
  const auto files = std::make_shared<PlainFiles>(options.folder / "pack", reader);
  return [files](std::size_t i, std::vector<std::byte>& into) { return files->read(i, into); };
}

struct Totals {
  std::atomic<std::uint64_t> samples = 0;
  std::atomic<std::uint64_t> bytes = 0;
};

/// Reads the samples repeatedly until the time is over.
void read_for(const Options& options, const std::vector<std::size_t>& order, std::size_t first,
              std::size_t room, const ReadOne& read, Totals& totals) {
  constexpr std::size_t kBetweenLooks = 256;
  std::vector<std::byte> into(room);
  std::uint64_t samples = 0;
  std::uint64_t bytes = 0;
  const std::uint64_t begin = monotonic_ns();
  for (std::size_t at = first; seconds_between(begin, monotonic_ns()) < options.seconds;) {
    for (std::size_t n = 0; n < kBetweenLooks; ++n) {
      bytes += read(order[at], into);
      asm volatile("" : : "r"(into.data()) : "memory");  // keeps the read
      at = at + 1 == order.size() ? 0 : at + 1;
    }
    samples += kBetweenLooks;
  }
  totals.samples += samples;
  totals.bytes += bytes;
}

std::uint64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

void measure(const Options& options) {
  const auto reader = pack::open(options.folder / "pack");
  std::vector<std::size_t> order(reader->size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (options.access == "random") std::shuffle(order.begin(), order.end(), std::mt19937_64(2));
  std::size_t room = 0;
  for (std::size_t i = 0; i < reader->size(); ++i) room = std::max(room, reader->bytes(i));
  const ReadOne read = way_to_read(options, *reader);
  std::vector<std::byte> into(room);
  for (const std::size_t i : order) read(i, into);  // brings everything into the page cache and maps it
  Totals totals;
  const std::uint64_t begin = monotonic_ns();
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < options.threads; ++t) {
      const std::size_t first =
          order.size() * static_cast<std::size_t>(t) / static_cast<std::size_t>(options.threads);
      threads.emplace_back([&, first] { read_for(options, order, first, room, read, totals); });
    }
  }
  const double seconds = seconds_between(begin, monotonic_ns());
  Tool::print({{"samples", reader->size()},
               {"sample_bytes", room},
               {"samples_per_second", static_cast<double>(totals.samples) / seconds},
               {"bytes_per_second", static_cast<double>(totals.bytes) / seconds},
               {"memory_bytes", peak_memory()}});
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Options options;
  bool make = false;
  lockstep::Tool tool("bench_reader_lockstep", "Lockstep's side of bench_reader.");
  tool.app().add_option("--folder", options.folder, "Where the pack is")->required();
  tool.app().add_flag("--make", make, "Make the pack");
  tool.app().add_option("--samples", options.samples);
  tool.app().add_option("--bytes", options.bytes, "Of a sample");
  tool.app().add_option("--way", options.way)->check(CLI::IsMember({"view", "read", "pread"}));
  tool.app().add_option("--access", options.access)->check(CLI::IsMember({"sequential", "random"}));
  tool.app().add_option("--threads", options.threads)->check(CLI::Range(1, 256));
  tool.app().add_option("--seconds", options.seconds);
  return tool.run(argc, argv, [&] { make ? make_pack(options) : measure(options); });
}
