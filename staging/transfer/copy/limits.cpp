#include "staging/transfer/copy/limits.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "staging/pack/digest.h"

namespace lockstep::transfer {
namespace {

std::size_t round_up(std::size_t bytes) {
  constexpr std::size_t kMask = ChunkBuffers::kAlignment - 1;
  return std::max<std::size_t>(ChunkBuffers::kAlignment, (bytes + kMask) & ~kMask);
}

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::size_t kPage = 4096;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "it is shared between processes");

std::uint64_t this_boot() {
  const std::string id = read_text_file("/proc/sys/kernel/random/boot_id");
  return pack::xxh3_64(std::as_bytes(std::span(id)));
}

}  // namespace

struct ChunkBuffers::Memory {
  Memory(std::size_t bytes, std::size_t chunk_bytes)
      : budget(std::max(bytes, round_up(chunk_bytes))), chunk(round_up(chunk_bytes)) {}
  ~Memory() {
    for (std::byte* memory : spare) std::free(memory);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const std::size_t budget;
  const std::size_t chunk;
  std::mutex mutex;
  std::condition_variable freed;
  std::size_t used = 0;
  std::vector<std::byte*> spare;  // of chunk size: mapping memory again would cost as much as reading a chunk
};

ChunkBuffers::ChunkBuffers(std::size_t budget, std::size_t chunk)
    : memory_(std::make_shared<Memory>(budget, chunk)) {
}

LentChunk ChunkBuffers::take(std::size_t bytes) {
  Memory& memory = *memory_;
  // Small chunks get a buffer of their own size. All others get buffers of one size, which can be reused.
  const std::size_t capacity =
      round_up(bytes) <= memory.chunk / 4 ? round_up(bytes) : std::max(memory.chunk, round_up(bytes));
  std::byte* taken = nullptr;
  {
    std::unique_lock lock(memory.mutex);
    memory.freed.wait(lock, [&] { return memory.used == 0 || memory.used + capacity <= memory.budget; });
    memory.used += capacity;
    if (capacity == memory.chunk && !memory.spare.empty()) {
      taken = memory.spare.back();
      memory.spare.pop_back();
    }
  }
  if (taken == nullptr) taken = static_cast<std::byte*>(std::aligned_alloc(kAlignment, capacity));
  const auto give_back = [owner = memory_, capacity](std::byte* given) {
    {
      const std::lock_guard lock(owner->mutex);
      owner->used -= capacity;
      if (given != nullptr && capacity == owner->chunk) owner->spare.push_back(std::exchange(given, nullptr));
    }
    owner->freed.notify_all();
    std::free(given);
  };
  LentChunk chunk{std::shared_ptr<std::byte>(taken, give_back), bytes};
  if (taken == nullptr) throw std::bad_alloc();
  return chunk;
}

Limit::Limit(std::uint64_t bytes_per_second, const std::filesystem::path& shared) : rate_(bytes_per_second) {
  if (rate_ == 0 || shared.empty()) return;
  const UniqueFd fd(::open(shared.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  // On a full disk a page that has no block yet would end the process with SIGBUS.
  if (!fd || ::posix_fallocate(fd.get(), 0, kPage) != 0) return;
  void* const mapping = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return;
  next_ = static_cast<std::atomic<std::uint64_t>*>(mapping);
  // The clock restarts with each boot.
  std::atomic<std::uint64_t>& boot = next_[1];
  const std::uint64_t now = this_boot();
  if (boot.exchange(now) != now) next_->store(0);
}

Limit::~Limit() {
  if (next_ != &own_) ::munmap(next_, kPage);
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
