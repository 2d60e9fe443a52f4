#include "exporters/record/writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>
#include <utility>

namespace lockstep::record {
namespace {

std::uint64_t now_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int error) {
  throw RecordError("cannot make the record " + path.string() + ": " + what + ": " + std::strerror(error));
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

// The file under its temporary name. Removed unless it gets its final name.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path) : path_(path) {
    temporary_ = (path.parent_path() / ("." + path.filename().string() + ".XXXXXX")).string();
    fd_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
    if (fd_ < 0) fail(path_, "creating it", errno);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (fd_ < 0) return;
    ::unlink(temporary_.c_str());
    ::close(fd_);
  }
  int fd() const { return fd_; }
  int publish() {
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "renaming it", errno);
    return std::exchange(fd_, -1);
  }

 private:
  const std::filesystem::path& path_;
  std::string temporary_;
  int fd_ = -1;
};

void lock_for_life(int fd, const std::filesystem::path& path) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(fd, F_OFD_SETLK, &lock) != 0) fail(path, "locking it", errno);
}

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

Writer::Writer(const std::filesystem::path& path, const Identity& identity) : path_(path) {
  NewFile made(path_);
  if (const int error = ::posix_fallocate(made.fd(), 0, sizeof(File)); error != 0) {
    fail(path_, "reserving its space", error);
  }
  if (::fchmod(made.fd(), 0640) != 0) fail(path_, "setting its mode", errno);
  lock_for_life(made.fd(), path_);
  void* mapped =
      ::mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, made.fd(), 0);
  if (mapped == MAP_FAILED) fail(path_, "mapping it", errno);
  file_ = ::new (mapped) File;
  file_->header = make_header(identity);
  try {
    fd_ = made.publish();
  } catch (...) {
    ::munmap(file_, sizeof(File));
    throw;
  }
}

Writer::~Writer() {
  finish();
  ::munmap(file_, sizeof(File));
  ::close(fd_);
}

void Writer::set_doing(Phase phase, std::uint64_t now) noexcept {
  std::atomic_ref(file_->live.phase_since_ns).store(now, std::memory_order_relaxed);
  std::atomic_ref(file_->live.phase).store(index(phase), std::memory_order_relaxed);
}

void Writer::add_comm(std::uint64_t transfer_ns, std::uint64_t wait_ns, int late_rank) noexcept {
  comm_transfer_ns_.fetch_add(transfer_ns, std::memory_order_relaxed);
  comm_wait_ns_.fetch_add(wait_ns, std::memory_order_relaxed);
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
  totals_.comm_transfer_ns = comm_transfer_ns_.load(std::memory_order_relaxed);
  totals_.comm_wait_ns = comm_wait_ns_.load(std::memory_order_relaxed);
  step_.comm_transfer_ns = totals_.comm_transfer_ns - transfer_before;
  step_.comm_wait_ns = totals_.comm_wait_ns - wait_before;
  const std::uint64_t longest = longest_wait_.exchange(0, std::memory_order_relaxed);
  step_.late_rank = longest == 0 ? -1 : static_cast<std::int64_t>(longest & ((1ULL << kRankBits) - 1));

  if (totals_.steps == 0 && end_ns > step_.step_ns) {
    first_step_ns_.store(end_ns - step_.step_ns, std::memory_order_relaxed);
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
  const auto value = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
  resources.loader_build_ns = value(loader_build_ns_);
  resources.loader_user_ns = value(loader_user_ns_);
  resources.loader_system_ns = value(loader_system_ns_);
  resources.loader_delay_ns = value(loader_delay_ns_);
  resources.loader_buffer_bytes = value(loader_buffer_bytes_);
  resources.skipped_samples = value(skipped_samples_);
  resources.first_step_ns = value(first_step_ns_);
  resources.launch_ns = value(launch_ns_);
  resources.on_device = value(on_device_);
  for (std::size_t i = 0; i < kCollectives; ++i) {
    resources.collectives[i] = {.bytes = value(collectives_[i].bytes), .ns = value(collectives_[i].ns)};
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
  totals_.bytes_read = bytes_read_.load(std::memory_order_relaxed);
  std::atomic_ref publications(file_->live.publications);
  const std::uint64_t next = publications.load(std::memory_order_relaxed) + 1;
  store_words(file_->counters[next % 2], totals_);
  publications.store(next, std::memory_order_release);
  // The stores of the next publication must not become visible before this number, which readers check last.
  std::atomic_thread_fence(std::memory_order_release);
}

}  // namespace lockstep::record
