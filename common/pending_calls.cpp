#include "common/pending_calls.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>

#include "common/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxThreads = 4096;

// fsync waits for all data that other processes have written to the same disk. By Linux's defaults that is up
// to a fifth of the memory: with 512 GiB, at 200 MB/s, nine minutes on a good disk.
constexpr int kWritesOutTimes = 6;

/// The call that one thread is in.
struct Entry {
  std::atomic<bool> used;  // by a thread
  std::atomic<bool> writes_out;
  std::atomic<std::uint32_t> turn;  // odd during a call
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "processes share it");

}  // namespace

struct CallTable {
  std::array<Entry, kMaxThreads> entries;
  std::array<std::array<char, PATH_MAX>, kMaxThreads> paths;
};

namespace {

std::atomic<CallTable*> recorded = nullptr;  // the table of this process

/// A thread's place in the table, free again when the thread ends.
struct ThreadPlace {
  CallTable* table = nullptr;
  std::size_t number = kMaxThreads;  // kMaxThreads: no place

  ~ThreadPlace() {
    if (table != nullptr && number < kMaxThreads) table->entries[number].used = false;
  }
  void find(CallTable* in) {
    table = in;
    number = 0;
    while (number < kMaxThreads && table->entries[number].used.exchange(true)) ++number;
  }
};

thread_local ThreadPlace place;

// The memory is shared with a forked process too, which must not record its calls in the places of this one.
void forget_after_fork() {
  recorded = nullptr;
  place.table = nullptr;
  place.number = kMaxThreads;
}

CallTable* new_table() {
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, &forget_after_fork);
  void* const memory = ::mmap(nullptr, sizeof(CallTable), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail_errno("cannot map memory for the table of calls");
  return static_cast<CallTable*>(memory);
}

}  // namespace

PendingCall::PendingCall(const char* path, bool writes_out) {
  CallTable* const table = recorded;
  if (table == nullptr) return;
  if (place.table != table) place.find(table);
  if (place.number == kMaxThreads) return;  // too many threads: this one's calls are not recorded
  Entry& entry = table->entries[place.number];
  if (entry.turn % 2 == 1) return;
  std::array<char, PATH_MAX>& text = table->paths[place.number];
  const std::size_t length = std::min(std::strlen(path), text.size() - 1);
  std::memcpy(text.data(), path, length);
  text[length] = '\0';
  entry.writes_out = writes_out;
  ++entry.turn;
  begun_ = true;
}

PendingCall::~PendingCall() {
  if (begun_) ++place.table->entries[place.number].turn;
}

PendingCalls::PendingCalls() : PendingCalls(new_table()) {
}

PendingCalls::PendingCalls(CallTable* table) : table_(table), seen_(kMaxThreads) {
}

PendingCalls PendingCalls::of_this_process() {
  if (recorded == nullptr) {
    CallTable* const table = new_table();
    CallTable* none = nullptr;
    if (!recorded.compare_exchange_strong(none, table)) ::munmap(table, sizeof(CallTable));
  }
  return PendingCalls(recorded.load());
}

PendingCalls::~PendingCalls() {
  if (table_ != recorded) ::munmap(table_, sizeof(CallTable));
}

void PendingCalls::record_here() const {
  recorded = table_;
}

std::optional<PendingCalls::Overdue> PendingCalls::look(int checks) {
  for (std::size_t n = 0; n < kMaxThreads; ++n) {
    const Entry& entry = table_->entries[n];
    Seen& seen = seen_[n];
    const std::uint32_t turn = entry.turn;
    if (turn != seen.turn || turn % 2 == 0) {
      seen = {turn, 0};
      continue;
    }
    const int times = entry.writes_out ? kWritesOutTimes : 1;
    if (++seen.looks > checks * times) return Overdue{table_->paths[n].data(), times};
  }
  return {};
}

}  // namespace lockstep
