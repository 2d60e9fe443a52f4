#include "exporters/report/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "common/process.h"
#include "common/units.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kModules = 10;

std::vector<Profile::Fault> faults(const nlohmann::json& list, double steps) {
  std::vector<Profile::Fault> all;
  for (const nlohmann::json& one : list) {
    all.push_back({.name = printable(one.at("name").get<std::string>()),
                   .calls = one.at("calls").get<double>() / steps,
                   .bytes = one.at("bytes").get<double>() / steps});
  }
  return all;
}

Profile parse(nlohmann::json read) {
  Profile profile{.rank = read.at("rank"),
                  .node = printable(read.at("node").get<std::string>()),
                  .steps = read.at("steps"),
                  .json = {}};
  const double steps = std::max(1.0, profile.steps);
  const auto mean = [&](const nlohmann::json& one, const char* key) {
    return one.at(key).get<double>() / steps;
  };
  const auto name = [](const nlohmann::json& one) { return printable(one.at("name").get<std::string>()); };
  profile.step_ms = mean(read, "step_ms");
  for (const nlohmann::json& one : read.at("operators")) {
    profile.operators.push_back({.name = name(one),
                                 .calls = mean(one, "calls"),
                                 .total_ms = mean(one, "total_ms"),
                                 .self_ms = mean(one, "self_ms")});
  }
  for (const nlohmann::json& one : read.at("modules")) {
    profile.modules.push_back({.name = name(one),
                               .forward_ms = mean(one, "forward_ms"),
                               .backward_ms = mean(one, "backward_ms"),
                               .forward_bytes = mean(one, "forward_bytes"),
                               .backward_bytes = mean(one, "backward_bytes")});
  }
  if (const auto device = read.find("device"); device != read.end()) {  // older profiles have none
    profile.device = {.computing_ms = mean(*device, "computing_ms"),
                      .tensor_cores_ms = mean(*device, "tensor_cores_ms"),
                      .communicating_ms = mean(*device, "communicating_ms"),
                      .copying_ms = mean(*device, "copying_ms"),
                      .busy_ms = mean(*device, "busy_ms")};
    for (const nlohmann::json& one : device->at("kernels")) {
      profile.device.kernels.push_back({.name = name(one),
                                        .calls = mean(one, "calls"),
                                        .total_ms = mean(one, "ms"),
                                        .self_ms = mean(one, "ms")});
    }
  }
  const nlohmann::json& small = read.at("small");
  profile.small = {.name = name(small), .calls = mean(small, "calls")};
  profile.small_ms = mean(small, "ms");
  profile.host_copies = faults(read.at("host_copies"), steps);
  profile.device_waits = faults(read.at("device_waits"), steps);
  if (read.contains("tuned_again")) profile.tuned_again = faults(read["tuned_again"], steps);
  profile.half_sums = faults(read.at("half_sums"), steps);
  profile.json = std::move(read);
  return profile;
}

std::int64_t modified_unix_ns(const std::filesystem::path& file) {
  const auto written = std::chrono::file_clock::to_sys(std::filesystem::last_write_time(file));
  return std::chrono::duration_cast<std::chrono::nanoseconds>(written.time_since_epoch()).count();
}

std::string rounded_bytes(double count) {
  return format_bytes(static_cast<std::uint64_t>(count));
}

std::string device_text(const Profile& profile) {
  const Profile::Device& device = profile.device;
  if (device.kernels.empty() || profile.step_ms <= 0) return {};
  const auto percent = [&](double ms) { return 100 * ms / profile.step_ms; };
  std::string text = fmt::format(
      "of the step the GPU computes {:.0f} % (tensor cores {:.0f} %), communicates {:.0f} %, copies {:.0f} %, idles {:.0f} %\n",
      percent(device.computing_ms), percent(device.tensor_cores_ms), percent(device.communicating_ms),
      percent(device.copying_ms), std::max(0.0, 100 - percent(device.busy_ms)));
  text += fmt::format("{:>9} {:>9}  kernel\n", "calls", "total");
  for (const auto& one : device.kernels)
    text += fmt::format("{:>9.0f} {:>9.2f}  {}\n", one.calls, one.total_ms, one.name);
  return text;
}

}  // namespace

Profile read_profile(const std::filesystem::path& file) {
  try {
    Profile profile = parse(nlohmann::json::parse(read_text_file(file)));
    profile.written_unix_ns = modified_unix_ns(file);
    return profile;
  } catch (const nlohmann::json::exception& error) {
    fail("{} is not a profile of lockstep: {}", file.string(), error.what());
  }
}

std::string profile_text(const Profile& profile) {
  std::string text = fmt::format("profile of {}, milliseconds per step, mean of {:.0f} steps of {:.2f} ms:\n",
                                 rank_name(profile.rank, profile.node), profile.steps, profile.step_ms);
  text += fmt::format("{:>9} {:>9} {:>9}  operator\n", "calls", "total", "self");
  for (const auto& one : profile.operators)
    text += fmt::format("{:>9.0f} {:>9.2f} {:>9.2f}  {}\n", one.calls, one.total_ms, one.self_ms, one.name);
  text += device_text(profile);
  if (profile.modules.empty()) return text;
  text += fmt::format("{:>9} {:>9} {:>10} {:>10}  module\n", "forward", "backward", "results", "gradients");
  const std::size_t shown = std::min(profile.modules.size(), kModules);
  for (std::size_t i = 0; i < shown; ++i) {
    const Profile::Module& one = profile.modules[i];
    text += fmt::format("{:>9.2f} {:>9.2f} {:>10} {:>10}  {}\n", one.forward_ms, one.backward_ms,
                        rounded_bytes(one.forward_bytes), rounded_bytes(one.backward_bytes), one.name);
  }
  if (shown < profile.modules.size())
    text += fmt::format("and {} modules that take less time\n", profile.modules.size() - shown);
  return text;
}

}  // namespace lockstep::report
