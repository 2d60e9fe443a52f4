#include "runtime/profile/spans.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <mutex>
#include <utility>

#include "common/clock.h"
#include "common/leaf/unique_fd.h"

namespace lockstep::profile {
namespace {

constexpr std::uint64_t kMemoryInterval = 1'000'000;

std::uint64_t resident_bytes() {
  static const UniqueFd statm(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  std::array<char, 128> text{};
  const ssize_t size = ::pread(statm.get(), text.data(), text.size() - 1, 0);
  const char* const second = size > 0 ? std::strchr(text.data(), ' ') : nullptr;
  std::uint64_t pages = 0;
  if (second != nullptr) std::from_chars(second + 1, text.data() + size, pages);
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

struct Collection {
  std::mutex mutex;
  Spans spans;
  std::function<std::uint64_t()> device_bytes;
  std::uint64_t next_memory_ns = 0;
  std::map<int, std::string> thread_names;  // of threads that may have ended
  std::vector<std::string> modules;
};

Collection& collection() {
  static auto* const one = new Collection;  // never destroyed: threads may outlive main
  return *one;
}

int number_of_this_thread() {
  std::array<char, 16> name{};
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  const int thread = ::gettid();
  Collection& all = collection();
  const std::scoped_lock lock(all.mutex);
  all.thread_names[thread] = name.data();
  return thread;
}

}  // namespace

void add_span(Span span) {
  thread_local const int thread = number_of_this_thread();
  if (span.kind != SpanKind::device) span.thread = thread;
  Collection& all = collection();
  const std::scoped_lock lock(all.mutex);
  if (!tracing()) return;
  if (span.end_ns >= all.next_memory_ns) {
    const std::uint64_t now = monotonic_ns();
    all.next_memory_ns = now + kMemoryInterval;
    all.spans.memory.push_back({.ns = now,
                                .resident_bytes = resident_bytes(),
                                .device_bytes = all.device_bytes ? all.device_bytes() : 0});
  }
  if (all.spans.spans.size() < kMaxSpans) {
    all.spans.spans.push_back(std::move(span));
  } else {
    ++all.spans.dropped;
  }
}

void add_fault(OperationFault fault, const std::string& operation, std::uint64_t bytes) {
  Collection& all = collection();
  const std::scoped_lock lock(all.mutex);
  if (!tracing()) return;
  FaultCount& count = all.spans.faults[{fault, operation}];
  ++count.calls;
  count.bytes += bytes;
}

void set_modules(std::vector<std::string> names) {
  Collection& all = collection();
  const std::scoped_lock lock(all.mutex);
  all.modules = std::move(names);
}

void start_spans(std::function<std::uint64_t()> device_bytes) {
  Collection& all = collection();
  const std::scoped_lock lock(all.mutex);
  all.spans = {};
  all.next_memory_ns = 0;
  all.device_bytes = std::move(device_bytes);
  tracing_now = true;
}

Spans stop_spans() {
  Collection& all = collection();
  const std::scoped_lock lock(all.mutex);
  tracing_now = false;
  all.spans.thread_names = all.thread_names;
  all.spans.modules = all.modules;
  return std::exchange(all.spans, {});
}

}  // namespace lockstep::profile
