#include "exporters/record/record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>

#include "common/leaf/text.h"

namespace lockstep::record {
namespace {

constexpr int kAttempts = 16;

// O_NONBLOCK: opening a FIFO must not wait for its other end.
constexpr int kOpenFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

[[noreturn]] void fail_read(const std::string& name, const std::string& what) {
  throw Error("cannot read the record " + name + ": " + what);
}

std::string text_of(const std::array<char, kNameBytes>& name) {
  return {name.data(), strnlen(name.data(), name.size())};
}

std::uint64_t now_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

[[noreturn]] void fail_write(const std::filesystem::path& path, const char* what, int error) {
  throw Error("cannot make the record " + path.string() + ": " + what + ": " + errno_text(error));
}

void copy_name(std::array<char, kNameBytes>& into, const std::string& name) {
  std::size_t bytes = std::min(name.size(), into.size() - 1);
  // Does not cut a UTF-8 character: all its bytes but the first are 10xxxxxx.
  while (bytes > 0 && bytes < name.size() && (static_cast<unsigned char>(name[bytes]) & 0xC0U) == 0x80U)
    --bytes;
  name.copy(into.data(), bytes);
}

// Readers copy the mapping at any moment, so every word is stored atomically. On a 64-bit machine these are
// plain stores that the compiler may neither split nor leave out.
template <typename T>
void store_words(T& into, const T& from) noexcept {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::uint64_t) == 0);
  auto* target = reinterpret_cast<std::uint64_t*>(&into);
  const auto* source = reinterpret_cast<const std::uint64_t*>(&from);
  for (std::size_t i = 0; i < sizeof(T) / sizeof(std::uint64_t); ++i) {
    std::atomic_ref(target[i]).store(source[i], std::memory_order_relaxed);
  }
}

std::size_t bucket_of(std::uint64_t ns) {
  return static_cast<std::size_t>(std::lower_bound(kBucketBounds.begin(), kBucketBounds.end(), ns) -
                                  kBucketBounds.begin());
}

std::uint64_t load(std::uint64_t& total) {
  return std::atomic_ref(total).load(std::memory_order_relaxed);
}

// The fields of Resources that the Writer counts.
constexpr std::array kCounted = {
    &Resources::loader_build_ns, &Resources::loader_user_ns,      &Resources::loader_system_ns,
    &Resources::loader_delay_ns, &Resources::loader_buffer_bytes, &Resources::skipped_samples,
    &Resources::first_step_ns,   &Resources::launch_ns,           &Resources::on_device};

Header make_header(const Identity& identity) {
  Header header;
  header.header_bytes = sizeof(Header);
  header.file_bytes = sizeof(File);
  header.job_id = identity.job_id;
  header.step_id = identity.step_id;
  header.rank = identity.rank;
  header.size = identity.size;
  header.local_rank = identity.local_rank;
  header.process_id = ::getpid();
  header.start_unix_ns = static_cast<std::int64_t>(now_ns(CLOCK_REALTIME));
  header.start_monotonic_ns = now_ns(CLOCK_MONOTONIC);
  copy_name(header.node, identity.node);
  copy_name(header.program, identity.program);
  return header;
}

constexpr unsigned kRankBits = 24;

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

Reader::Reader(const std::filesystem::path& path) : Reader(AT_FDCWD, path.string()) {
}

Reader::Reader(int folder, const std::string& name)
    : name_(name), fd_(::openat(folder, name.c_str(), kOpenFlags)) {
  if (!fd_) fail_read(name_, errno == ELOOP ? "it is a symbolic link" : errno_text(errno));
  struct stat status = {};
  if (::fstat(fd_.get(), &status) != 0) fail_read(name_, errno_text(errno));
  if (!S_ISREG(status.st_mode)) fail_read(name_, "it is not a regular file");
  if (status.st_size < static_cast<off_t>(sizeof(Header))) fail_read(name_, "it is too short");
  owner_ = status.st_uid;
  pread_exactly(&header_, sizeof(header_), offsetof(File, header));
  if (header_.magic != kMagic) fail_read(name_, "it is not a record");
  if (header_.version != kVersion) {
    fail_read(name_, "it has version " + std::to_string(header_.version) + ", this program reads version " +
                         std::to_string(kVersion));
  }
  if (header_.header_bytes != sizeof(Header) || header_.file_bytes != sizeof(File) ||
      status.st_size != static_cast<off_t>(sizeof(File))) {
    fail_read(name_, "it has " + std::to_string(status.st_size) + " bytes, a record of this version has " +
                         std::to_string(sizeof(File)));
  }
  // The rank may exceed the size: independent programs in one step number their records (lockstep.py).
  if (header_.rank < 0 || header_.size < 1) {
    fail_read(name_, "rank " + std::to_string(header_.rank) + " of " + std::to_string(header_.size) +
                         " is impossible");
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
    const ssize_t got = ::pread(fd_.get(), target, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_read(name_, errno_text(errno));
    if (got == 0) fail_read(name_, "it was truncated while being read");
    target += got;
    bytes -= static_cast<std::size_t>(got);
    offset += static_cast<std::size_t>(got);
  }
}

bool Reader::writer_lives() const {
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  return ::fcntl(fd_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
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
    if (attempt == kAttempts) fail_read(name_, "the record changed during every read attempt");
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
  const auto rank = to_number<int>(file);
  return rank && *rank >= 0 ? rank : std::nullopt;
}

Snapshot read_without_steps(int folder, const std::string& file, int rank) {
  Snapshot snapshot = Reader(folder, file).read(kRecentSteps);
  if (snapshot.identity.rank != rank) throw Error("its rank and its name differ");
  snapshot.steps = {};
  return snapshot;
}

Writer::Writer(const std::filesystem::path& path, const Identity& identity) : path_(path) {
  std::string temporary = (path.parent_path() / ("." + path.filename().string() + ".XXXXXX")).string();
  fd_.reset(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd_) fail_write(path_, "creating it", errno);
  void* mapped = MAP_FAILED;
  try {
    if (const int error = ::posix_fallocate(fd_.get(), 0, sizeof(File)); error != 0)
      fail_write(path_, "reserving its space", error);
    if (::fchmod(fd_.get(), 0640) != 0) fail_write(path_, "setting its mode", errno);
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (::fcntl(fd_.get(), F_OFD_SETLK, &lock) != 0) fail_write(path_, "locking it", errno);
    mapped = ::mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_.get(), 0);
    if (mapped == MAP_FAILED) fail_write(path_, "mapping it", errno);
    file_ = ::new (mapped) File;
    file_->header = make_header(identity);
    if (::rename(temporary.c_str(), path_.c_str()) != 0) fail_write(path_, "renaming it", errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    if (mapped != MAP_FAILED) ::munmap(mapped, sizeof(File));
    throw;
  }
}

Writer::~Writer() {
  finish();
  ::munmap(file_, sizeof(File));
}

void Writer::set_doing(Phase phase, std::uint64_t now) noexcept {
  std::atomic_ref(file_->live.phase_since_ns).store(now, std::memory_order_relaxed);
  std::atomic_ref(file_->live.phase).store(index(phase), std::memory_order_relaxed);
}

void Writer::add_comm(std::uint64_t transfer_ns, std::uint64_t wait_ns, int late_rank) noexcept {
  add(comm_transfer_ns_, transfer_ns);
  add(comm_wait_ns_, wait_ns);
  if (late_rank < 0 || wait_ns == 0) return;
  // One word holds the longest wait and its rank, so that the two cannot come from different waits.
  const std::uint64_t wait = (std::min<std::uint64_t>(wait_ns, (1ULL << (64 - kRankBits)) - 1) << kRankBits) |
                             static_cast<std::uint64_t>(late_rank);
  std::uint64_t longest = longest_wait_.load(std::memory_order_relaxed);
  while (wait > longest && !longest_wait_.compare_exchange_weak(longest, wait, std::memory_order_relaxed)) {
  }
}

void Writer::end_step(std::uint64_t step_ns, std::uint64_t end_ns, const StepCounts& counts) noexcept {
  std::uint64_t explained = 0;
  for (const std::uint64_t ns : step_.phase_ns) explained += ns;
  step_.step_ns = std::max(step_ns, explained);
  step_.phase_ns[index(Phase::other)] += step_.step_ns - explained;
  step_.index = totals_.steps;
  step_.end_ns = end_ns;
  step_.tokens = counts.tokens;
  step_.padding = counts.padding;
  step_.squares = counts.squares;

  const std::uint64_t transfer_before = totals_.comm_transfer_ns;
  const std::uint64_t wait_before = totals_.comm_wait_ns;
  totals_.comm_transfer_ns = load(comm_transfer_ns_);
  totals_.comm_wait_ns = load(comm_wait_ns_);
  step_.comm_transfer_ns = totals_.comm_transfer_ns - transfer_before;
  step_.comm_wait_ns = totals_.comm_wait_ns - wait_before;
  const std::uint64_t longest = longest_wait_.exchange(0, std::memory_order_relaxed);
  step_.late_rank = longest == 0 ? -1 : static_cast<std::int64_t>(longest & ((1ULL << kRankBits) - 1));

  if (totals_.steps == 0 && end_ns > step_.step_ns) {
    std::atomic_ref(counted_.first_step_ns).store(end_ns - step_.step_ns, std::memory_order_relaxed);
  }
  totals_.steps += 1;
  totals_.step_ns += step_.step_ns;
  totals_.step_histogram[bucket_of(step_.step_ns)] += 1;
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    totals_.phase_ns[phase] += step_.phase_ns[phase];
    totals_.phase_histogram[phase][bucket_of(step_.phase_ns[phase])] += 1;
  }
  totals_.tokens += counts.tokens;
  totals_.samples += counts.samples;
  totals_.padding += counts.padding;
  totals_.last_step_end_ns = end_ns;
  store_words(file_->ring[step_.index % kRingSteps], step_);
  publish();
  step_ = Step{};
}

void Writer::set_resources(Resources resources) noexcept {
  for (const auto field : kCounted) resources.*field = load(counted_.*field);
  for (std::size_t i = 0; i < kCollectives; ++i) {
    CollectiveTotals& totals = counted_.collectives[i];
    resources.collectives[i] = {.bytes = load(totals.bytes), .ns = load(totals.ns)};
  }
  store_words(file_->resources, resources);
}

void Writer::finish() noexcept {
  std::atomic_ref finished(file_->live.finished_unix_ns);
  if (finished.load(std::memory_order_relaxed) != 0) return;
  std::atomic_ref(file_->live.phase).store(kPhases, std::memory_order_relaxed);
  publish();
  if (std::uncaught_exceptions() > exceptions_at_start_) return;  // reports say that this rank died
  finished.store(static_cast<std::int64_t>(now_ns(CLOCK_REALTIME)), std::memory_order_release);
}

void Writer::publish() noexcept {
  totals_.bytes_read = load(bytes_read_);
  std::atomic_ref publications(file_->live.publications);
  const std::uint64_t next = publications.load(std::memory_order_relaxed) + 1;
  store_words(file_->counters[next % 2], totals_);
  publications.store(next, std::memory_order_release);
  // The stores of the next publication must not become visible before this number, which readers check last.
  std::atomic_thread_fence(std::memory_order_release);
}

}  // namespace lockstep::record
