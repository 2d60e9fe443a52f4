#include "runtime/comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "common/error.h"
#include "common/job_limits.h"
#include "common/leaf/descriptors.h"
#include "common/leaf/unique_fd.h"
#include "common/units.h"

namespace lockstep::comm::shm {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// The segments of this process by their end address, so that upper_bound finds the segment of an address.
// Never destroyed, because static tensors may free their memory last.
struct Registry {
  std::mutex mutex;
  std::map<std::uintptr_t, SegmentHandle> by_end;
  std::atomic<std::uint64_t> free_count{0};
};

Registry& registry() {
  static auto& instance = *new Registry;
  return instance;
}

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Maps large segments at a multiple of 2 MiB, so that the kernel can use huge pages: reserves more address
// space than needed and returns the rest.
void* map_aligned(int descriptor, std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 0;
  const std::size_t reserved_bytes = bytes + alignment;
  void* reserved =
      ::mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto begin = reinterpret_cast<std::uintptr_t>(reserved);
  const std::uintptr_t aligned = alignment == 0 ? begin : round_up(begin, alignment);
  void* wanted = static_cast<std::byte*>(reserved) + (aligned - begin);
  void* mapped =
      ::mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, descriptor, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::munmap(reserved, reserved_bytes);
    errno = error;
    return MAP_FAILED;
  }
  const std::uintptr_t end = aligned + bytes;
  if (aligned > begin) ::munmap(reserved, aligned - begin);
  if (begin + reserved_bytes > end) {
    ::munmap(static_cast<std::byte*>(wanted) + bytes, begin + reserved_bytes - end);
  }
  return mapped;
}

// Allocates the pages of the file now: later, a missing page would be a SIGBUS in the middle of backward. The
// kernel kills a process when there is no memory, instead of reporting an error. So looks before each part,
// since the other ranks of the job allocate at the same time.
void allocate_pages(int descriptor, std::size_t bytes) {
  constexpr std::size_t kPart = std::size_t{64} << 20;
  for (std::size_t done = 0; done < bytes;) {
    const MemoryLimit limit = available_memory();
    if (bytes - done > limit.available) {
      fail(
          "cannot allocate {} ({} bytes) of memory to share with the ranks of this node: only {} are available in {}: give the job more memory (sbatch --mem)",
          format_bytes(bytes), bytes, format_bytes(done + limit.available), limit.of);
    }
    const std::size_t part = std::min(kPart, bytes - done);
    int error = 0;
    do {
      error = ::posix_fallocate(descriptor, static_cast<off_t>(done), static_cast<off_t>(part));
    } while (error == EINTR);  // a signal interrupted it
    if (error != 0) {
      errno = error;
      fail_errno("cannot allocate {} ({} bytes) of memory to share with the ranks of this node",
                 format_bytes(bytes), bytes);
    }
    done += part;
  }
}

// Unused memory above this is freed.
constexpr std::size_t kMaxKept = std::size_t{64} << 20;
constexpr std::size_t kMinBlock = std::size_t{64} << 10;

// Rounds up, so that a block fits later operations too.
std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kStep = std::size_t{1} << 20;
  if (bytes <= 8 * kStep) return std::bit_ceil(std::max(bytes, kMinBlock));
  return (bytes + kStep - 1) / kStep * kStep;
}

}  // namespace

std::shared_ptr<void> allocate(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = round_up(bytes == 0 ? 1 : bytes, page);
  UniqueFd file = make_memory_file("lockstep");
  if (!file) fail_errno("cannot create shared memory");
  allocate_pages(file.get(), size);
  void* memory = map_aligned(file.get(), size);
  struct stat status {};
  if (memory == MAP_FAILED || ::fstat(file.get(), &status) != 0) {
    fail_errno("cannot map {} ({} bytes) of memory to share with the ranks of this node", format_bytes(size),
               size);
  }
  const int descriptor = file.release();
  ::madvise(memory, size, MADV_HUGEPAGE);  // has an effect only if the system allows it

  const auto end = reinterpret_cast<std::uintptr_t>(memory) + size;
  {
    const std::scoped_lock lock(registry().mutex);
    registry().by_end[end] = {
        .process = ::getpid(), .descriptor = descriptor, .inode = status.st_ino, .bytes = size};
  }
  return {memory, [descriptor, size, end](void* mapped) {
            {
              const std::scoped_lock lock(registry().mutex);
              registry().by_end.erase(end);
            }
            registry().free_count.fetch_add(1, std::memory_order_release);
            ::munmap(mapped, size);
            ::close(descriptor);
          }};
}

std::optional<Location> find(const void* memory, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::scoped_lock lock(registry().mutex);
  const auto found = registry().by_end.upper_bound(begin);
  if (found == registry().by_end.end()) return std::nullopt;
  const std::uintptr_t segment_begin = found->first - found->second.bytes;
  if (begin < segment_begin || bytes > found->first - begin) return std::nullopt;
  return Location{.segment = found->second, .offset = begin - segment_begin};
}

std::uint64_t free_count() {
  return registry().free_count.load(std::memory_order_acquire);
}

std::shared_ptr<void> map(const SegmentHandle& segment) {
  const std::string path = fmt::format("/proc/{}/fd/{}", segment.process, segment.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) fail_errno("cannot open the shared memory of process {} ({})", segment.process, path);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || status.st_ino != segment.inode ||
      static_cast<std::uint64_t>(status.st_size) != segment.bytes) {
    ::close(descriptor);
    fail(
        "{} is not the shared memory of process {}: check whether the ranks of this node run in separate PID namespaces",
        path, segment.process);
  }
  void* memory = map_aligned(descriptor, segment.bytes);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  if (memory == MAP_FAILED)
    fail_errno("cannot map {} of shared memory of process {}", format_bytes(segment.bytes), segment.process);
  return {memory, [bytes = segment.bytes](void* mapped) { ::munmap(mapped, bytes); }};
}

std::shared_ptr<void> StagingPool::take(std::size_t bytes) {
  const auto fits = [bytes](const FreeBlock& block) { return block.bytes >= bytes; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) return allocate(rounded(bytes));
  auto memory = std::move(found->memory);
  free_.erase(found);
  return memory;
}

void StagingPool::give_back(std::shared_ptr<void> memory) {
  const std::size_t bytes = find(memory.get(), 1)->segment.bytes;
  const auto larger = [bytes](const FreeBlock& block) { return block.bytes >= bytes; };
  free_.insert(std::find_if(free_.begin(), free_.end(), larger), {std::move(memory), bytes});  // by size
  std::size_t kept = 0;
  for (const auto& block : free_) kept += block.bytes;
  while (kept > kMaxKept) {
    kept -= free_.back().bytes;
    free_.pop_back();
  }
}

}  // namespace lockstep::comm::shm
