#include "runtime/profile/resource_sampler.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <string_view>
#include <utility>

#include "common/background_cpus.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/leaf/unique_fd.h"
#include "common/thread.h"
#include "exporters/record/writer.h"

namespace lockstep::profile {
namespace {

// Memory grows to its peak in the first steps, and a rank that is killed there should leave that.
constexpr std::chrono::milliseconds kFirstPeriod{100};
constexpr int kFirstSamples = 100;
constexpr std::chrono::milliseconds kPeriod{1000};

std::uint64_t nanoseconds(const timeval& time) {
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(time.tv_usec) * 1000U;
}

// A file of /proc, which fits one read.
class ProcFile {
 public:
  explicit ProcFile(const char* path) {
    const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
    const ssize_t bytes = fd ? ::read(fd.get(), text_.data(), text_.size()) : 0;
    length_ = bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
  }

  /// The number after a line's name ("VmHWM:"); 0 if there is none.
  std::uint64_t number(std::string_view name) const {
    const std::string_view text(text_.data(), length_);
    const std::size_t found = text.find(name);
    if (found == std::string_view::npos) return 0;
    const std::size_t begin = text.find_first_not_of(" \t", found + name.size());
    std::uint64_t value = 0;
    if (begin != std::string_view::npos) std::from_chars(text.data() + begin, text.data() + length_, value);
    return value;
  }

 private:
  std::array<char, 4096> text_{};
  std::size_t length_ = 0;
};

}  // namespace

record::Resources sample_resources(const JobLimits& limits) {
  record::Resources sample;
  sample.sampled_ns = monotonic_ns();
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  sample.user_ns = nanoseconds(usage.ru_utime);
  sample.system_ns = nanoseconds(usage.ru_stime);
  sample.major_faults = static_cast<std::uint64_t>(usage.ru_majflt);
  sample.voluntary_switches = static_cast<std::uint64_t>(usage.ru_nvcsw);
  sample.involuntary_switches = static_cast<std::uint64_t>(usage.ru_nivcsw);
  // Not ru_maxrss, which counts the program that started this one too.
  const ProcFile status("/proc/self/status");
  sample.memory_bytes = status.number("VmRSS:") << 10U;
  sample.memory_peak_bytes = status.number("VmHWM:") << 10U;
  sample.memory_file_bytes = status.number("RssFile:") << 10U;
  sample.memory_shared_bytes = status.number("RssShmem:") << 10U;
  const ProcFile io("/proc/self/io");
  sample.read_bytes = io.number("rchar:");
  sample.read_calls = io.number("syscr:");
  sample.storage_read_bytes = io.number("\nread_bytes:");
  sample.memory_limit_bytes = limits.memory_bytes;
  sample.memory_group = limits.memory_group;
  sample.cpu_limit = limits.cpus;
  return sample;
}

ResourceSampler::ResourceSampler(record::Writer& writer, record::Identity rank)
    : writer_(writer), rank_(std::move(rank)), process_(::getpid()) {
  try {
    thread_ = start_thread([this] { work(); });
  } catch (const Error&) {  // the last sample has all totals
  }
}

ResourceSampler::~ResourceSampler() {
  if (process_ != ::getpid()) {  // a forked process does not have the thread
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  publish();
}

void ResourceSampler::set_gpus(std::string identity, std::uint64_t granted,
                               std::function<AllocatorState()> allocator) {
  const std::lock_guard lock(mutex_);
  gpu_ = std::move(identity);
  granted_gpus_ = granted;
  allocator_ = std::move(allocator);
}

void ResourceSampler::publish() {
  record::Resources sample = sample_resources(limits_);
  if (!gpu_sampler_ && !gpu_.empty()) gpu_sampler_ = std::make_unique<GpuSampler>(gpu_, rank_);
  if (gpu_sampler_) sample.gpu = gpu_sampler_->sample(sample.sampled_ns, writer_.has_steps());
  sample.gpu.granted = granted_gpus_;
  if (allocator_) {
    const AllocatorState state = allocator_();
    sample.gpu.allocator_retries = state.retries;
    sample.gpu.allocator_unused_bytes = state.unused_bytes;
  }
  writer_.set_resources(sample);
}

void ResourceSampler::work() {
  pthread_setname_np(pthread_self(), "lockstep-usage");
  use_background_cpus();
  std::unique_lock lock(mutex_);
  int samples = 0;
  do {
    publish();
    ++samples;
  } while (
      !changed_.wait_for(lock, samples < kFirstSamples ? kFirstPeriod : kPeriod, [&] { return stopping_; }));
}

}  // namespace lockstep::profile
