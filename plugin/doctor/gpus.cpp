#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/nvml.h"
#include "plugin/doctor/checks.h"

namespace lockstep::doctor {
namespace {

// One finding names all GPUs that fail a check.
struct Check {
  const char* id;
  Level level;
  bool (*fails)(const nvml::State& gpu);
  const char* what;  // after the GPUs' numbers
  const char* why;
  const char* remedy;
  const char* passed;
};

constexpr std::array kChecks = {
    Check{"gpu-persistence", Level::warning,
          [](const nvml::State& gpu) { return !gpu.persistence.value_or(true); }, "persistence mode is off",
          "The driver starts the GPU again for each job, which takes seconds and resets its settings.",
          "nvidia-smi -pm 1, or the service nvidia-persistenced", "persistence mode is on"},
    Check{
        "gpu-mig", Level::warning, [](const nvml::State& gpu) { return gpu.mig.value_or(false); },
        "MIG mode is on",
        "NCCL does not connect parts of a GPU, so each rank trains alone, and their figures are not recorded.",
        "nvidia-smi -mig 0 for jobs on several GPUs", "MIG mode is off"},
    Check{"gpu-clocks", Level::warning, [](const nvml::State& gpu) { return gpu.slowed(); },
          "heat or the power supply lower the clocks", "All ranks of a job wait for the slowest GPU.",
          "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; check cooling and power",
          "clocks are not lowered"},
    Check{"gpu-ecc", Level::error, [](const nvml::State& gpu) { return gpu.ecc_uncorrected.value_or(0) > 0; },
          "errors of memory that ECC could not correct",
          "A job on it may end with an Xid, or compute wrong numbers.",
          "nvidia-smi -q -d ECC; drain the node and reset or replace the GPU",
          "no uncorrected errors of memory"}};

void check_p2p(const nvml::Library& library, Report& report) {
  std::vector<std::string> pairs;
  for (std::size_t gpu = 0; gpu < library.gpus(); ++gpu) {
    for (std::size_t other = gpu + 1; other < library.gpus(); ++other) {
      if (!library.reads(gpu, other) || !library.reads(other, gpu))
        pairs.push_back(fmt::format("{} and {}", gpu, other));
    }
  }
  if (library.gpus() < 2) return;
  if (pairs.empty()) return report.ok("gpu-p2p", "all GPUs can read each other's memory");
  constexpr std::size_t kShown = 4;
  const std::size_t more = pairs.size() - std::min(kShown, pairs.size());
  pairs.resize(pairs.size() - more);
  report.warning(
      "gpu-p2p",
      fmt::format("GPUs {}{} cannot read each other's memory", fmt::join(pairs, ", "),
                  more == 0 ? "" : fmt::format(" and {} more pairs", more)),
      "NCCL copies between them through the memory of the host, which is slower.",
      "nvidia-smi topo -p2p r; switch off ACS on the PCI bridges in the BIOS, and give containers all GPUs of a job");
}

std::set<int> packages_of(const std::vector<int>& domains, const affinity::Machine& machine) {
  std::set<int> packages;
  for (const int domain : domains) packages.insert(machine.domains[static_cast<std::size_t>(domain)].package);
  return packages;
}

}  // namespace

void check_gpu_network(const affinity::Machine& machine, Report& report) {
  if (machine.gpus.empty() || machine.network_cards.empty()) return;
  std::vector<std::string> names;
  std::set<int> with_card;
  for (const affinity::NetworkCard& card : machine.network_cards) {
    if (card.domains.empty()) return;  // nobody knows where it is
    names.push_back(card.name);
    with_card.merge(packages_of(card.domains, machine));
  }
  std::vector<std::string> far;
  for (const affinity::Gpu& gpu : machine.gpus) {
    const std::set<int> packages = packages_of(gpu.domains, machine);
    const bool near = std::any_of(packages.begin(), packages.end(),
                                  [&](int package) { return with_card.contains(package); });
    if (!packages.empty() && !near) far.push_back(gpu.bus_id);
  }
  if (far.empty()) return report.ok("gpu-network", "each GPU has a network card at its socket");
  const std::string what = fmt::format("GPU {}: no network card at the same socket (the node has {})",
                                       fmt::join(far, ", "), fmt::join(names, ", "));
  // A single card must be at one of the sockets.
  if (names.size() == 1) return report.ok("gpu-network", what);
  report.warning("gpu-network", what,
                 "Their data for other nodes crosses the link between the sockets, which all share.",
                 "move a card to a slot of that socket");
}

void check_gpus(Report& report, const std::filesystem::path& device) {
  std::unique_ptr<nvml::Library> library;
  try {
    library = nvml::Library::open();
  } catch (const Error& error) {
    return report.error("gpu", error.what(), "CUDA does not work on this node either.",
                        "reboot, or load the driver's module again, after an update of the driver");
  }
  if (!library && std::filesystem::exists(device)) {
    return report.warning(
        "gpu", "the node has NVIDIA's driver, and libnvidia-ml.so.1 does not work",
        "Nothing is known of the GPUs: no figures in records, reports and Prometheus.",
        "apt install libnvidia-ml1, or the driver's own package; in a container run it with --nv or --gpus");
  }
  if (!library || library->gpus() == 0) return report.ok("gpu", "this node has no NVIDIA GPU");
  std::vector<nvml::State> states;
  for (std::size_t gpu = 0; gpu < library->gpus(); ++gpu) states.push_back(library->state(gpu));
  report.ok("gpu", fmt::format("{} GPUs ({}, up to {} MHz), driver {} for CUDA up to {}", states.size(),
                               library->name(0), states.front().sm_max_mhz.value_or(0),
                               library->driver_version(), library->cuda_version()));
  for (const Check& check : kChecks) {
    std::vector<std::size_t> failed;
    for (std::size_t gpu = 0; gpu < states.size(); ++gpu) {
      if (check.fails(states[gpu])) failed.push_back(gpu);
    }
    if (failed.empty()) {
      report.ok(check.id, check.passed);
      continue;
    }
    const std::string what = fmt::format("GPU {}: {}", fmt::join(failed, ", "), check.what);
    if (check.level == Level::error) {
      report.error(check.id, what, check.why, check.remedy);
    } else {
      report.warning(check.id, what, check.why, check.remedy);
    }
  }
  check_p2p(*library, report);
  if (report.versions.contains("LibTorch") && !report.versions.contains("NCCL")) {
    report.warning(
        "nccl", "LibTorch is there without NCCL", "Programs with this LibTorch compute on the CPU.",
        "build with PyTorch's wheel for CUDA (docs/users/gpus.md), or check the program that you run: --program");
  }
}

}  // namespace lockstep::doctor
