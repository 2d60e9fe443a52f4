#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>

#include "common/error.h"
#include "common/leaf/unique_fd.h"
#include "common/units.h"
#include "plugin/doctor/checks.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBlock = std::size_t{1} << 20;
constexpr std::size_t kPage =
    4096;  // direct I/O needs places and memory that are multiples of the disk's sectors
constexpr std::uint64_t kMaxWritten = std::uint64_t{256} << 20;
constexpr std::size_t kMaxFiles = 100'000;
constexpr std::chrono::seconds kTime{1};  // of each measurement

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

std::unique_ptr<char, Free> aligned_block() {
  std::unique_ptr<char, Free> block(static_cast<char*>(std::aligned_alloc(kPage, kBlock)));
  if (!block) fail("no memory is left");
  std::mt19937_64 random(1);  // a disk may compress equal bytes
  for (std::size_t i = 0; i < kBlock; i += sizeof(std::uint64_t)) {
    const std::uint64_t number = random();
    std::copy_n(reinterpret_cast<const char*>(&number), sizeof number, block.get() + i);
  }
  return block;
}

double seconds_since(Clock::time_point begin) {
  return std::max(std::chrono::duration<double>(Clock::now() - begin).count(), 1e-9);
}

struct OpenFile {
  UniqueFd fd;
  bool direct = true;
};

OpenFile open_direct(const fs::path& path, int flags) {
  OpenFile file{.fd = UniqueFd(::open(path.c_str(), flags | O_CLOEXEC | O_DIRECT, 0600))};
  if (file.fd) return file;
  file = {.fd = UniqueFd(::open(path.c_str(), flags | O_CLOEXEC, 0600)), .direct = false};
  if (!file.fd) fail_errno("cannot open a file in {}", path.string());
  return file;
}

ReadSpeed measure(const OpenFile& file, std::uint64_t size, const std::string& name) {
  const std::unique_ptr<char, Free> block = aligned_block();
  if (!file.direct) ::posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  ReadSpeed speed{.direct = file.direct};
  std::uint64_t done = 0;
  auto begin = Clock::now();
  while (done < size && Clock::now() - begin < kTime) {
    const ssize_t got = ::pread(file.fd.get(), block.get(), kBlock, static_cast<off_t>(done));
    if (got < 0) fail_errno("cannot read {}", name);
    if (got == 0) break;
    done += static_cast<std::uint64_t>(got);
  }
  speed.bytes_per_second = static_cast<double>(done) / seconds_since(begin);
  if (size < 2 * kBlock) return speed;
  if (!file.direct) ::posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  std::mt19937_64 random(2);
  std::uint64_t reads = 0;
  begin = Clock::now();
  while (Clock::now() - begin < kTime) {
    const std::uint64_t at = random() % (size / kPage) * kPage;
    if (::pread(file.fd.get(), block.get(), kPage, static_cast<off_t>(at)) < 0)
      fail_errno("cannot read {}", name);
    ++reads;
  }
  speed.reads_per_second = static_cast<double>(reads) / seconds_since(begin);
  return speed;
}

struct SourceFiles {
  fs::path largest;
  std::uint64_t largest_bytes = 0;
  std::uint64_t bytes = 0;
};

SourceFiles look_at(const fs::path& source) {
  SourceFiles found;
  const auto add = [&](const fs::path& file) {
    const std::uint64_t bytes = fs::file_size(file);
    found.bytes += bytes;
    if (bytes <= found.largest_bytes) return;
    found.largest = file;
    found.largest_bytes = bytes;
  };
  if (fs::is_directory(source)) {
    std::size_t files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(source)) {
      if (entry.is_regular_file() && ++files <= kMaxFiles) add(entry.path());
    }
  } else {
    add(source);
  }
  if (found.largest_bytes < kBlock)
    fail("the largest file of {} has {}, too little to measure", source.string(),
         format_bytes(found.largest_bytes));
  return found;
}

// A folder of the cache that this user may write to.
fs::path writable_folder(const std::string& cache) {
  for (const fs::path& folder : {fs::path(cache), fs::path(cache) / std::to_string(::getuid())}) {
    if (::access(folder.c_str(), W_OK) == 0) return folder;
  }
  fail("{} has no folder that this user may write to: stage something first, or run this as root", cache);
}

ReadSpeed measure_cache(const fs::path& folder) {
  const OpenFile file = open_direct(folder, O_TMPFILE | O_RDWR);
  const std::unique_ptr<char, Free> block = aligned_block();
  std::uint64_t size = 0;
  const auto begin = Clock::now();
  while (size < kMaxWritten && (size < 2 * kBlock || Clock::now() - begin < kTime)) {
    const ssize_t put = ::pwrite(file.fd.get(), block.get(), kBlock, static_cast<off_t>(size));
    if (put != static_cast<ssize_t>(kBlock)) fail_errno("cannot write in {}", folder.string());
    size += kBlock;
  }
  if (::fsync(file.fd.get()) != 0) fail_errno("cannot write in {}", folder.string());
  return measure(file, size, folder.string());
}

std::optional<bool> is_rotational(const fs::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return {};
  const std::string device =
      fmt::format("/sys/dev/block/{}:{}", ::major(status.st_dev), ::minor(status.st_dev));
  // A partition has no queue; its disk is the folder above.
  for (const char* const queue : {"/queue/rotational", "/../queue/rotational"}) {
    std::ifstream file(device + queue);
    if (int value = 0; file >> value) return value == 1;
  }
  return {};
}

std::string text_of(const ReadSpeed& speed) {
  return fmt::format("{}/s{}{}", format_bytes(static_cast<std::uint64_t>(speed.bytes_per_second)),
                     speed.reads_per_second > 0
                         ? fmt::format(", {:.0f} random reads of 4 KiB/s", speed.reads_per_second)
                         : "",
                     speed.direct ? "" : " (through memory)");
}

}  // namespace

void judge_disks(const DiskFigures& figures, Report& report) {
  const std::string size = format_bytes(figures.source_bytes);
  const bool fits_ram = figures.ram > 0 && figures.source_bytes <= figures.ram;
  const std::string ram =
      fits_ram ? fmt::format("stage it to memory, where its {} fit: --stage-tier=ram", size)
      : figures.ram > 0
          ? "read the source without --stage, or stage a part of it"
          : "read the source without --stage, or set 'ram' in lockstep.conf for --stage-tier=ram";
  const std::string speeds =
      fmt::format("{} ({}) is read with {}, the cache {} with {}", figures.source, size,
                  text_of(figures.source_speed), figures.cache, text_of(figures.cache_speed));
  constexpr double kClearly = 0.9;
  if (figures.cache_speed.bytes_per_second < kClearly * figures.source_speed.bytes_per_second) {
    return report.warning(
        "disks", speeds,
        "Staged data would be read more slowly than the source is read by the nodes measured now.", ram);
  }
  constexpr double kRotating = 1000;  // random reads a second; virtual machines call every disk rotational
  if (figures.rotational.value_or(false) && figures.cache_speed.reads_per_second < kRotating) {
    return report.warning("disks", speeds + "; its disk rotates",
                          "Several workers that read samples in random order wait for its head.", ram);
  }
  report.ok("disks", speeds + (fits_ram ? "; the source also fits --stage-tier=ram" : ""));
}

void check_disks(const fs::path& source, const Config& config, Report& report) try {
  if (config.cache.empty()) fail("'cache' is not set in lockstep.conf");
  const fs::path folder = writable_folder(config.cache);
  const SourceFiles files = look_at(source);
  DiskFigures figures;
  figures.source = source.string();
  figures.cache = config.cache;
  figures.source_bytes = files.bytes;
  figures.ram = config.ram;
  figures.rotational = is_rotational(folder);
  figures.source_speed =
      measure(open_direct(files.largest, O_RDONLY), files.largest_bytes, files.largest.string());
  figures.cache_speed = measure_cache(folder);
  judge_disks(figures, report);
} catch (const std::exception& error) {
  report.error(
      "disks", error.what(), "The source and the cache could not be compared.",
      "name packed data that this user can read: --measure SOURCE; lockstep-pack create packs small files");
}

}  // namespace lockstep::doctor
