#include "runtime/profile/gpu_sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/environment.h"
#include "common/process.h"

namespace lockstep::profile {
namespace {

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

}  // namespace lockstep::profile
