#include "runtime/profile/resource_sampler.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <exception>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/launcher.h"
#include "common/leaf/unique_fd.h"
#include "common/process.h"
#include "common/thread.h"
#include "exporters/record/record.h"

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

std::string without_hyphens(std::string text) {
  std::erase(text, '-');
  return text;
}

std::uint64_t hexadecimal(std::string_view digits) {
  std::uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return value;
}

// "0,2-3" are 3. The name of a GPU, as "GPU-8932f937-…", has hyphens too, but begins with a letter.
std::uint64_t count_of(const std::string& list) {
  std::uint64_t count = 0;
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');) {
    int first = 0;
    int last = 0;
    const char* const end = item.data() + item.size();
    const auto [at, error] = std::from_chars(item.data(), end, first);
    const bool range = error == std::errc() && at != end && *at == '-' &&
                       std::from_chars(at + 1, end, last).ec == std::errc() && last > first;
    count += range ? static_cast<std::uint64_t>(last - first) + 1 : 1;
  }
  return count;
}

}  // namespace

GrantedGpus granted_gpus() {
  // Those of the node come first: with --gpus-per-task each task sees only its own in CUDA_VISIBLE_DEVICES.
  for (const char* const name : {"SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"}) {
    const auto value = environment::get(name);
    if (!value) continue;
    const bool none = *value == "NoDevFiles" || *value == "none" || *value == "void" || *value == "-1";
    return none ? GrantedGpus{} : GrantedGpus{count_of(*value), name + ("=" + *value)};
  }
  return {};
}

GpuSampler::GpuSampler(const std::string& identity, record::Identity rank) : rank_(std::move(rank)) {
  try {
    library_ = nvml::Library::open();
  } catch (const std::exception&) {  // lockstep-doctor says why
  }
  if (!library_) return;
  const std::string wanted = without_hyphens(identity);
  while (index_ < library_->gpus() && without_hyphens(library_->uuid(index_)) != wanted) ++index_;
  if (index_ == library_->gpus() || wanted.size() != 35) {
    library_.reset();
    return;
  }
  totals_.uuid = {hexadecimal(std::string_view(wanted).substr(3, 16)),
                  hexadecimal(std::string_view(wanted).substr(19))};
  energy_before_mj_ = library_->state(index_).energy_mj.value_or(0);
  library_->watch_xids(index_);
}

void GpuSampler::take_xids() {
  while (const auto xid = library_->next_xid()) {
    ++totals_.xid_errors;
    totals_.last_xid = *xid;
    if (!printed_xids_.insert(*xid).second) continue;
    const std::string where = rank_name(rank_.rank, rank_.node);
    const std::string gpu = record::uuid_text(totals_);
    if (nvml::xid_of_program(*xid)) {
      fmt::print(
          stderr,
          "lockstep: {}: its GPU {} reported Xid {}, which the program's kernels cause: look for the kernel with compute-sanitizer, or with CUDA_LAUNCH_BLOCKING=1\n",
          where, gpu, *xid);
    } else {
      fmt::print(
          stderr,
          "lockstep: {}: its GPU {} reported Xid {}, an error of the GPU or its driver: report it to the administrator (dmesg | grep Xid), and leave the node out (sbatch --exclude={})\n",
          where, gpu, *xid, rank_.node);
    }
  }
}

record::Gpu GpuSampler::sample(std::uint64_t now_ns, bool training) {
  if (!library_) return totals_;
  const nvml::State now = library_->state(index_);
  if (now.memory) {
    totals_.memory_bytes = now.memory->used;
    totals_.memory_peak_bytes = std::max<std::uint64_t>(totals_.memory_peak_bytes, now.memory->used);
    totals_.memory_total_bytes = now.memory->total;
  }
  totals_.sm_mhz = now.sm_mhz.value_or(0);
  totals_.sm_max_mhz = now.sm_max_mhz.value_or(0);
  totals_.memory_mhz = now.memory_mhz.value_or(0);
  totals_.power_mw = now.power_mw.value_or(0);
  const std::uint64_t energy = now.energy_mj.value_or(0);
  if (energy >= energy_before_mj_) totals_.energy_mj = energy - energy_before_mj_;
  totals_.ecc_corrected = now.ecc_corrected.value_or(0);
  totals_.ecc_uncorrected = now.ecc_uncorrected.value_or(0);
  take_xids();
  totals_.busy_percent = now.busy_percent.value_or(0);
  if (!training) return totals_;
  // A GPU that does not tell how busy it is has no shares: nothing was measured.
  if (last_ns_ != 0 && now.busy_percent) {
    const std::uint64_t ns = now_ns - last_ns_;
    totals_.measured_ns += ns;
    totals_.busy_ns += ns * std::min(100U, *now.busy_percent) / 100;
    if (now.slowed()) totals_.slowed_ns += ns;
    if ((now.throttle_reasons.value_or(0) & nvml::kPowerCap) != 0) totals_.capped_ns += ns;
    totals_.throttle_reasons |= now.throttle_reasons.value_or(0);
  }
  last_ns_ = now_ns;
  return totals_;
}

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
