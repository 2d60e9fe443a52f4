#include "runtime/data/loader_advice.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "common/clock.h"
#include "common/error.h"
#include "common/leaf/unique_fd.h"
#include "common/units.h"

namespace lockstep::data {
namespace {

// Building takes longer while the loop computes on the same CPUs: this factor is the reserve.
constexpr double kReserve = 1.25;

double seconds(std::uint64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

}  // namespace

profile::LoaderWork work_of_thread() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto nanoseconds = [](const timeval& time) {
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U +
           static_cast<std::uint64_t>(time.tv_usec) * 1000U;
  };
  profile::LoaderWork work{.user_ns = nanoseconds(usage.ru_utime), .system_ns = nanoseconds(usage.ru_stime)};
  // "on a CPU, ready without one, time slices"; not in every kernel.
  thread_local const UniqueFd schedule(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
  std::array<char, 96> text{};
  const ssize_t bytes = schedule ? ::pread(schedule.get(), text.data(), text.size(), 0) : 0;
  const std::string_view line(text.data(), bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  if (const std::size_t space = line.find(' '); space != std::string_view::npos) {
    std::from_chars(line.data() + space + 1, line.data() + line.size(), work.delay_ns);
  }
  return work;
}

std::optional<std::string> advice_on_memory(const LoaderMemory& memory, int loaders,
                                            const MemoryLimit& limit) {
  const std::size_t needed = memory.total() * static_cast<std::size_t>(loaders);
  if (needed <= limit.available) return std::nullopt;
  return fmt::format(
      "the batches of {} loader{} may need {} ({} batches of {} each), but {} has only {} left: lower bytes_ahead, batches_ahead or plan.cap",
      loaders, loaders == 1 ? "" : "s", format_bytes(needed), memory.batches, format_bytes(memory.batch),
      limit.of, format_bytes(limit.available));
}

void LoaderMeter::add_build(std::uint64_t nanoseconds) {
  const std::lock_guard lock(mutex_);
  ++builds_;
  build_ns_ += nanoseconds;
  longest_build_ns_ = std::max(longest_build_ns_, nanoseconds);
}

void LoaderMeter::on_request() {
  if (use_began_ns_ == 0) return;
  use_ns_ += monotonic_ns() - use_began_ns_;
  ++uses_;
}

void LoaderMeter::on_batch(std::uint64_t waited_ns, bool first) {
  if (!first) waited_ns_ += waited_ns;
  use_began_ns_ = monotonic_ns();
}

LoaderAdvice LoaderMeter::advice() const {
  LoaderAdvice advice;
  const std::lock_guard lock(mutex_);
  if (builds_ == 0 || uses_ == 0) return advice;
  advice.build_seconds = seconds(build_ns_) / static_cast<double>(builds_);
  advice.longest_build = seconds(longest_build_ns_);
  advice.use_seconds = seconds(use_ns_) / static_cast<double>(uses_);
  advice.waited_seconds = seconds(waited_ns_);
  const double use = std::max(advice.use_seconds, 1e-9);
  advice.workers = std::max(1, static_cast<int>(std::ceil(kReserve * advice.build_seconds / use)));
  // While a worker builds the slowest batch, the loop uses the ready ones, and each worker is building one.
  advice.batches_ahead = advice.workers + static_cast<int>(std::ceil(advice.longest_build / use));
  return advice;
}

std::string to_text(const LoaderAdvice& advice) {
  if (advice.workers == 0) return "nothing is measured yet";
  return fmt::format("a batch takes {} to build and {} to use: {} worker{} and {} batches ahead suffice ({})",
                     format_seconds(advice.build_seconds), format_seconds(advice.use_seconds), advice.workers,
                     advice.workers == 1 ? "" : "s", advice.batches_ahead,
                     format_bytes(advice.memory.total()));
}

}  // namespace lockstep::data
