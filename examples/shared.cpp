#include "examples/shared.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <cstdio>

#include "common/environment.h"
#include "common/error.h"
#include "common/process.h"
#include "runtime/comm/communicator.h"
#include "runtime/profile/accelerator.h"
#ifdef LOCKSTEP_WITH_REPORT
#include "exporters/report/diagnosis.h"
#include "exporters/report/run.h"
#endif

namespace lockstep {

std::filesystem::path staged(const char* name) {
  const auto folder = environment::get("LOCKSTEP_DATA");
  return folder ? std::filesystem::path(*folder) / name : std::filesystem::path();
}

std::unique_ptr<pack::Reader> open_pack(const std::filesystem::path& path, const char* option) {
  if (path.empty()) fail("no data: give {} DIR, or submit with --stage (LOCKSTEP_DATA is not set)", option);
  return pack::open(path);
}

c10::Device choose_device(const std::string& name, const World& world) {
  const auto found = accelerator();
  if (name == "cpu" || (name == "auto" && !found)) return c10::kCPU;
  const c10::DeviceType type = name == "auto" ? *found : c10::DeviceType::CUDA;
  const int devices = device_count(type);
  if (devices == 0) {
    fail_usage(
        "--device {}: LibTorch {} finds no CUDA device; choose cpu or auto, or build with a CUDA wheel (docs/users/gpus.md)",
        name, TORCH_VERSION);
  }
  const int index = devices == 1 ? 0 : world.local_rank();
  if (index >= devices) {
    fail_usage("--device {}: this node has {} devices for {} ranks; start one rank for each device", name,
               devices, world.local_size());
  }
  return {type, static_cast<c10::DeviceIndex>(index)};
}

bool done_on_all_ranks(World& world, std::string_view program, std::string_view label,
                       const std::function<void()>& work) {
  const auto failure = comm::run_on_all_ranks(world.communicator(), label, work);
  if (failure && failure->rank == world.rank()) {
    fmt::print(stderr, "{}: {}: {}\n", program, rank_name(world.rank(), world.node_name()), failure->reason);
  }
  return !failure;
}

void print_verdict(World& world) {
  const std::filesystem::path records = world.timer().file().parent_path();
  if (world.rank() != 0 || records.empty()) return;
#ifdef LOCKSTEP_WITH_REPORT
  try {
    const report::Run run = report::load({records});
    for (const std::string& line : report::verdict_lines(run, report::diagnose(run)))
      fmt::print("{}\n", line);
  } catch (const Error& error) {  // a trained model counts more than its report
    fmt::print("no verdict: {}\n", error.what());
  }
#endif
  fmt::print("where each rank's time went: lockstep-report {}\n",
             environment::get_or("LOCKSTEP_REPORT_DIR", records.string()));
}

}  // namespace lockstep
