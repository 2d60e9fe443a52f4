#include "exporters/report/profile_advice.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/units.h"

namespace lockstep::report {
namespace {

constexpr double kSmallCalls = 500;   // per step
constexpr double kSmallShare = 0.20;  // of the step
constexpr double kOncePerStep = 0.99;
constexpr double kComputes = 0.50;     // of the step: kernels run
constexpr double kTensorCores = 0.20;  // of the kernels

double calls_of(const std::vector<Profile::Fault>& faults) {
  double calls = 0;
  for (const Profile::Fault& fault : faults) calls += fault.calls;
  return calls;
}

std::string times(double calls) {
  const auto whole = std::max(1.0, calls);
  return whole < 1.5 ? "once" : fmt::format("{:.0f} times", whole);
}

// "aten::item 3 times, aten::nonzero once"; three at most, by frequency.
std::string list(std::vector<Profile::Fault> faults) {
  std::stable_sort(faults.begin(), faults.end(),
                   [](const auto& a, const auto& b) { return a.calls > b.calls; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(faults.size(), 3); ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", faults[i].name, times(faults[i].calls));
  return text;
}

}  // namespace

void add_profile_advice(const Run& run, std::vector<Advice>& advice) {
  if (!run.profile) return;
  const Profile& profile = *run.profile;
  if (profile.small.calls >= kSmallCalls && profile.small_ms >= kSmallShare * profile.step_ms) {
    advice.push_back(
        {"small-operators",
         fmt::format(
             "The profile has {:.0f} operators of less than 10 µs in each step; they take {:.0f} % of it. The most frequent one is {}.",
             profile.small.calls, 100 * profile.small_ms / profile.step_ms, profile.small.name),
         "Replace the loop that calls them by one operation on a larger tensor (torch::stack, torch::bmm, torch::cumsum)."});
  }
  if (calls_of(profile.host_copies) >= kOncePerStep) {
    double bytes = 0;
    for (const Profile::Fault& fault : profile.host_copies) bytes += fault.bytes;
    advice.push_back(
        {"host-copies",
         fmt::format(
             "The profile's forward makes tensors on the CPU and copies them to the device: {} in each step, {}.",
             list(profile.host_copies), format_bytes(static_cast<std::uint64_t>(bytes))),
         "Make them on the device (torch::arange(n, tokens.options())), and constants once, as buffers of the module (register_buffer)."});
  }
  if (calls_of(profile.device_waits) >= kOncePerStep) {
    advice.push_back(
        {"device-waits",
         fmt::format("The profile's program waits for the device in each step: {}.",
                     list(profile.device_waits)),
         "Read the loss once in many steps (if (step % 100 == 0) loss.item<float>()), and replace indices by masks (torch::where); lockstep::SyncDetector finds the calls."});
  }
  if (calls_of(profile.tuned_again) >= kOncePerStep) {
    advice.push_back(
        {"autotuned-again",
         fmt::format(
             "cuDNN's autotuner measured its algorithms for {:.0f} convolutions with new shapes in each step of the profile.",
             calls_of(profile.tuned_again)),
         "Switch it off (the setting cudnn_benchmark), or give batches few shapes (plan.fixed_shape, plan.pad_multiple)."});
  }
  const Profile::Device& device = profile.device;
  if (!device.kernels.empty() && device.computing_ms >= kComputes * profile.step_ms &&
      device.tensor_cores_ms < kTensorCores * device.computing_ms) {
    advice.push_back(
        {"no-tensor-cores",
         fmt::format(
             "The profile's GPU computes for {:.0f} % of the step, but only {:.0f} % of that in kernels that use tensor cores. Most time takes {}.",
             100 * device.computing_ms / profile.step_ms, 100 * device.tensor_cores_ms / device.computing_ms,
             device.kernels.front().name),
         "Train in bfloat16 (lockstep::Autocast) or with the setting matmul_precision = high, make dimensions multiples of 8, and join small operations on elements into few (a fused optimizer, scaled_dot_product_attention)."});
  }
  if (!profile.half_sums.empty()) {
    advice.push_back(
        {"half-sums",
         fmt::format("The profile's sums are rounded to 3 digits or less: {}.", list(profile.half_sums)),
         "Sum in float: sum(torch::kFloat), mean(torch::kFloat)."});
  }
}

}  // namespace lockstep::report
