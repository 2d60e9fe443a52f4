#include "exporters/record/snapshot.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <utility>

namespace lockstep::record {
namespace {

constexpr int kAttempts = 16;

// O_NONBLOCK: opening a FIFO must not wait for its other end.
constexpr int kOpenFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

[[noreturn]] void fail(const std::string& name, const std::string& what) {
  throw RecordError("cannot read the record " + name + ": " + what);
}

std::string text_of(const std::array<char, kNameBytes>& name) {
  return {name.data(), strnlen(name.data(), name.size())};
}

}  // namespace

std::string uuid_text(const Gpu& gpu) {
  std::array<char, 48> text{};
  const auto [high, low] = gpu.uuid;
  std::snprintf(text.data(), text.size(), "GPU-%08llx-%04llx-%04llx-%04llx-%012llx",
                static_cast<unsigned long long>(high >> 32U),
                static_cast<unsigned long long>(high >> 16U & 0xffffU),
                static_cast<unsigned long long>(high & 0xffffU), static_cast<unsigned long long>(low >> 48U),
                static_cast<unsigned long long>(low & 0xffff'ffff'ffffU));
  return text.data();
}

std::map<int, double> waits_by_rank(std::span<const Step> steps) {
  std::map<int, double> waits;
  for (const Step& step : steps) {
    if (step.late_rank < 0 || !std::in_range<int>(step.late_rank) || step.comm_wait_ns == 0) continue;
    waits[static_cast<int>(step.late_rank)] +=
        static_cast<double>(step.comm_wait_ns) * 1e-9 / static_cast<double>(steps.size());
  }
  return waits;
}

std::optional<std::pair<int, double>> longest_wait(const std::map<int, double>& waits) {
  const auto longest = std::max_element(waits.begin(), waits.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  if (longest == waits.end()) return std::nullopt;
  return *longest;
}

Reader::Reader(const std::filesystem::path& path)
    : name_(path.string()), fd_(::open(path.c_str(), kOpenFlags)) {
  check();
}

Reader::Reader(int folder, const std::string& name)
    : name_(name), fd_(::openat(folder, name.c_str(), kOpenFlags)) {
  check();
}

Reader::~Reader() {
  ::close(fd_);
}

void Reader::check() {
  if (fd_ < 0) fail(name_, errno == ELOOP ? "it is a symbolic link" : std::strerror(errno));
  try {
    struct stat status = {};
    if (::fstat(fd_, &status) != 0) fail(name_, std::strerror(errno));
    if (!S_ISREG(status.st_mode)) fail(name_, "it is not a regular file");
    if (status.st_size < static_cast<off_t>(sizeof(Header))) fail(name_, "it is too short");
    owner_ = status.st_uid;
    pread_exactly(&header_, sizeof(header_), offsetof(File, header));
    if (header_.magic != kMagic) fail(name_, "it is not a record");
    if (header_.version != kVersion) {
      fail(name_, "it has version " + std::to_string(header_.version) + ", this program reads version " +
                      std::to_string(kVersion));
    }
    if (header_.header_bytes != sizeof(Header) || header_.file_bytes != sizeof(File) ||
        status.st_size != static_cast<off_t>(sizeof(File))) {
      fail(name_, "it has " + std::to_string(status.st_size) + " bytes, a record of this version has " +
                      std::to_string(sizeof(File)));
    }
    // The rank may exceed the size: independent programs in one step number their records (lockstep.py).
    if (header_.rank < 0 || header_.size < 1) {
      fail(name_,
           "rank " + std::to_string(header_.rank) + " of " + std::to_string(header_.size) + " is impossible");
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
  identity_ = {.job_id = header_.job_id,
               .step_id = header_.step_id,
               .rank = header_.rank,
               .size = header_.size,
               .local_rank = header_.local_rank,
               .node = text_of(header_.node),
               .program = text_of(header_.program)};
}

void Reader::pread_exactly(void* into, std::size_t bytes, std::size_t offset) const {
  auto* target = static_cast<char*>(into);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, target, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(name_, std::strerror(errno));
    if (got == 0) fail(name_, "it was truncated while being read");
    target += got;
    bytes -= static_cast<std::size_t>(got);
    offset += static_cast<std::size_t>(got);
  }
}

bool Reader::writer_lives() const {
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  return ::fcntl(fd_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

Snapshot Reader::read(std::size_t last_steps) const {
  Snapshot snapshot;
  snapshot.identity = identity_;
  snapshot.owner = owner_;
  snapshot.process_id = header_.process_id;
  snapshot.start_unix_ns = header_.start_unix_ns;
  snapshot.start_monotonic_ns = header_.start_monotonic_ns;
  snapshot.alive = writer_lives();

  Live live;
  for (int attempt = 0;; ++attempt) {
    if (attempt == kAttempts) fail(name_, "the record changed during every read attempt");
    pread_exactly(&live, sizeof(live), offsetof(File, live));
    std::atomic_thread_fence(std::memory_order_acquire);
    snapshot.counters = Counters{};
    if (live.publications > 0) {
      const std::size_t slot = live.publications % 2;
      pread_exactly(&snapshot.counters, sizeof(Counters), offsetof(File, counters) + slot * sizeof(Counters));
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    std::uint64_t now = 0;
    pread_exactly(&now, sizeof(now), offsetof(File, live) + offsetof(Live, publications));
    if (now == live.publications) break;
  }
  Resources resources;
  pread_exactly(&resources, sizeof(resources), offsetof(File, resources));
  if (resources.sampled_ns != 0) snapshot.resources = resources;
  snapshot.finished_unix_ns = live.finished_unix_ns;
  if (live.finished_unix_ns != 0) snapshot.alive = false;
  if (live.phase < kPhases) {
    snapshot.doing = static_cast<Phase>(live.phase);
    snapshot.doing_since_ns = live.phase_since_ns;
  }

  const std::uint64_t end = snapshot.counters.steps;
  std::uint64_t begin = end - std::min<std::uint64_t>({end, last_steps, kRingSteps});
  for (std::uint64_t step = begin;
       step < end;) {  // at most two pieces: up to the ring's end, and from its start
    const std::uint64_t slot = step % kRingSteps;
    const std::uint64_t count = std::min<std::uint64_t>(end - step, kRingSteps - slot);
    const std::size_t have = snapshot.steps.size();
    snapshot.steps.resize(have + count);
    pread_exactly(&snapshot.steps[have], count * sizeof(Step), offsetof(File, ring) + slot * sizeof(Step));
    step += count;
  }
  // Leave out steps that the rank may have begun to overwrite meanwhile.
  std::atomic_thread_fence(std::memory_order_acquire);
  std::uint64_t publications = 0;
  pread_exactly(&publications, sizeof(publications), offsetof(File, live) + offsetof(Live, publications));
  const std::uint64_t overtaken =
      publications - live.publications;  // may be one too many, since finish() counts too
  const std::uint64_t oldest_whole = end + overtaken < kRingSteps ? 0 : end + overtaken - kRingSteps + 1;
  std::erase_if(snapshot.steps, [&](const Step& step) {
    return step.index < std::max(begin, oldest_whole) || step.index >= end;
  });
  const std::span recent = std::span(snapshot.steps).last(std::min(snapshot.steps.size(), kRecentSteps));
  std::uint64_t own_ns = 0;
  for (const Step& step : recent) own_ns += step.own_ns();
  if (!recent.empty())
    snapshot.recent_own_seconds = static_cast<double>(own_ns) * 1e-9 / static_cast<double>(recent.size());
  snapshot.recent_waits = waits_by_rank(recent);
  return snapshot;
}

std::optional<int> rank_of(std::string_view file) {
  constexpr std::string_view kPrefix = "rank-";
  constexpr std::string_view kSuffix = ".record";
  if (!file.starts_with(kPrefix) || !file.ends_with(kSuffix)) return std::nullopt;
  if (file.size() <= kPrefix.size() + kSuffix.size()) return std::nullopt;
  file = file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size());
  int rank = 0;
  const auto [end, error] = std::from_chars(file.data(), file.data() + file.size(), rank);
  if (error != std::errc() || end != file.data() + file.size() || rank < 0) return std::nullopt;
  return rank;
}

Snapshot read_without_steps(int folder, const std::string& file, int rank) {
  Snapshot snapshot = Reader(folder, file).read(kRecentSteps);
  if (snapshot.identity.rank != rank) throw RecordError("its rank and its name differ");
  snapshot.steps = {};
  return snapshot;
}

}  // namespace lockstep::record
