#include "runtime/comm/nccl/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "common/error.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/mpi/session.h"
#include "runtime/comm/nccl/cuda.h"
#include "runtime/comm/nccl/placement.h"
#include "runtime/comm/timeout.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 14, 0)
#error "NCCL 2.14 or later is needed: earlier versions have no nonblocking communicators"
#endif

namespace lockstep::comm::nccl {
namespace {

// What each rank tells the others about its device. Text of fixed length, so that one gather is enough.
struct DeviceReport {
  int node_ranks;
  int devices;
  int device;
  std::array<char, 64> identity;
  std::array<char, 128> node;
  std::array<char, 256> trouble;
};

template <std::size_t kSize>
void put(std::array<char, kSize>& into, const std::string& text) {
  const std::size_t size = std::min(text.size(), kSize - 1);
  std::memcpy(into.data(), text.data(), size);
  into[size] = '\0';
}

DeviceReport report_device(const RankInfo& place, int device) {
  DeviceReport report{};
  report.node_ranks = place.local_size;
  report.devices = devices();
  report.device = device;
  put(report.node, place.node_name);
  if (report.devices == 0) {
    put(report.trouble, "no usable CUDA device: " + why_no_devices());
  } else if (device < 0 || device >= report.devices) {
    put(report.trouble, fmt::format("the device does not exist; {} has cuda:0 to cuda:{}, and {} ranks",
                                    place.node_name, report.devices - 1, place.local_size));
  } else {
    try {
      put(report.identity, identity_of(device));
    } catch (const Error& error) {
      put(report.trouble, error.what());
    }
  }
  return report;
}

void check_devices(MPI_Comm world, const RankInfo& place, int device) {
  std::vector<DeviceReport> all(static_cast<std::size_t>(place.size));
  const DeviceReport mine = report_device(place, device);
  all[static_cast<std::size_t>(place.rank)] = mine;
  if (world != MPI_COMM_NULL) {
    mpi::check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, world),
               "MPI_Allgather");
  }
  std::vector<DeviceOfRank> ranks;
  ranks.reserve(all.size());
  for (const DeviceReport& report : all) {
    ranks.push_back({.rank = static_cast<int>(ranks.size()),
                     .node = report.node.data(),
                     .node_ranks = report.node_ranks,
                     .devices = report.devices,
                     .device = report.device,
                     .identity = report.identity.data(),
                     .trouble = report.trouble.data()});
  }
  check_placement(ranks);
}

ncclConfig_t config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace

Session::Session(MPI_Comm world, const RankInfo& place, int device, std::string name)
    : name_(std::move(name)) {
  check_devices(world, place, device);
  use_device(device);
  ncclUniqueId id{};
  if (place.rank == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess)
      fail("ncclGetUniqueId: {} ({})", ncclGetErrorString(result), ncclGetLastError(nullptr));
  }
  if (world != MPI_COMM_NULL) mpi::check(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, world), "MPI_Bcast");
  ncclConfig_t chosen = config();
  settle(ncclCommInitRankConfig(&handle_, place.size, id, place.rank, &chosen), "ncclCommInitRankConfig");
}

Session::~Session() {
  if (handle_ == nullptr) return;
  const Deadline deadline("the end of NCCL among " + name_);
  try {
    settle(ncclCommFinalize(handle_), "ncclCommFinalize");
  } catch (const Error&) {
    abort();  // the device would wait for ever
    return;
  }
  ncclCommDestroy(handle_);
}

std::unique_ptr<Session> Session::split(int color, [[maybe_unused]] MPI_Comm part, const RankInfo& place,
                                        std::string name) {
  std::unique_ptr<Session> group(new Session(nullptr, std::move(name)));
  ncclConfig_t chosen = config();
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0)
  // The key keeps the order of the ranks. settle() polls the parent session.
  settle(ncclCommSplit(handle_, color < 0 ? NCCL_SPLIT_NOCOLOR : color, place.rank, &group->handle_, &chosen),
         "ncclCommSplit");
#else
  if (color >= 0) {
    ncclUniqueId id{};
    if (place.rank == 0) settle(ncclGetUniqueId(&id), "ncclGetUniqueId");
    if (part != MPI_COMM_NULL) mpi::check(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, part), "MPI_Bcast");
    group->settle(ncclCommInitRankConfig(&group->handle_, place.size, id, place.rank, &chosen),
                  "ncclCommInitRankConfig");
  }
#endif
  if (color < 0) return nullptr;
  group->settle(ncclInProgress, "ncclCommSplit");
  return group;
}

void Session::settle(ncclResult_t result, const char* call) {
  OperationTimeout timeout;
  while (result == ncclInProgress) {
    const ncclResult_t asked = ncclCommGetAsyncError(handle_, &result);
    if (asked != ncclSuccess) result = asked;
    if (result != ncclInProgress) break;
    if (timeout.expired()) end_job_by_timeout(fmt::format("{} among {}", call, name_));
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (result != ncclSuccess) {
    fail("{} among {}: {} ({})", call, name_, ncclGetErrorString(result), ncclGetLastError(handle_));
  }
}

void Session::check_health() {
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(handle_, &result);
  if (asked != ncclSuccess) result = asked;
  if (result != ncclSuccess && result != ncclInProgress) {
    fail("NCCL among {}: {} ({})", name_, ncclGetErrorString(result), ncclGetLastError(handle_));
  }
}

void Session::abort() {
  if (handle_ == nullptr) return;
  // ncclCommAbort may itself wait for a broken network; the job ends whether it returns or not.
  auto ended = std::make_shared<std::promise<void>>();
  std::thread([handle = handle_, ended] {
    ncclCommAbort(handle);
    ended->set_value();
  }).detach();
  ended->get_future().wait_for(std::chrono::seconds(2));
  handle_ = nullptr;
}

}  // namespace lockstep::comm::nccl
