#include "staging/transfer/copy/limit.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <thread>

#include "common/clock.h"
#include "staging/pack/digest.h"

namespace lockstep::transfer {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::size_t kPage = 4096;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "it is shared between processes");

std::uint64_t this_boot() {
  const std::string id = read_text_file("/proc/sys/kernel/random/boot_id");
  return pack::xxh3_64(std::as_bytes(std::span(id)));
}

}  // namespace

Limit::Limit(std::uint64_t bytes_per_second, const std::filesystem::path& shared) : rate_(bytes_per_second) {
  if (rate_ == 0 || shared.empty()) return;
  const UniqueFd fd(::open(shared.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  // On a full disk a page that has no block yet would end the process with SIGBUS.
  if (!fd || ::posix_fallocate(fd.get(), 0, kPage) != 0) return;
  void* const mapping = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return;
  mapping_ = mapping;
  next_ = static_cast<std::atomic<std::uint64_t>*>(mapping);
  // The clock restarts with each boot.
  std::atomic<std::uint64_t>& boot = next_[1];
  const std::uint64_t now = this_boot();
  if (boot.exchange(now) != now) next_->store(0);
}

Limit::~Limit() {
  if (mapping_ != nullptr) ::munmap(mapping_, kPage);
}

void Limit::take(std::uint64_t bytes) {
  if (rate_ == 0) return;
  const auto cost =
      static_cast<std::uint64_t>(static_cast<double>(bytes) / static_cast<double>(rate_) * kSecond);
  const std::uint64_t now = monotonic_ns();
  std::uint64_t seen = next_->load();
  std::uint64_t mine = 0;
  do {
    mine = std::max(seen, now);
  } while (!next_->compare_exchange_weak(seen, mine + cost));
  // This caller's bytes may be read when all earlier ones, and these, fit the rate.
  std::this_thread::sleep_for(std::chrono::nanoseconds(mine + cost - now));
}

}  // namespace lockstep::transfer
