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

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 14, 0)
#error "NCCL 2.14 or later is needed: earlier ones cannot be asked whether they are done"
#endif

namespace lockstep::comm::nccl {
namespace {

// What a rank tells the others of its device: text of fixed length, so that one gather does.
struct Told {
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

Told what_to_tell(const Place& place, int device) {
  Told told{};
  told.node_ranks = place.local_size;
  told.devices = devices();
  told.device = device;
  put(told.node, place.node_name);
  if (told.devices == 0) {
    put(told.trouble, "no CUDA device can be used here: " + why_no_devices());
  } else if (device < 0 || device >= told.devices) {
    put(told.trouble, fmt::format("there is no such device; {} has cuda:0 to cuda:{}, and {} ranks",
                                  place.node_name, told.devices - 1, place.local_size));
  } else {
    try {
      put(told.identity, identity_of(device));
    } catch (const Error& error) {
      put(told.trouble, error.what());
    }
  }
  return told;
}

void check_devices(MPI_Comm world, const Place& place, int device) {
  std::vector<Told> all(static_cast<std::size_t>(place.size));
  const Told mine = what_to_tell(place, device);
  all[static_cast<std::size_t>(place.rank)] = mine;
  if (world != MPI_COMM_NULL) {
    mpi::check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, world),
               "MPI_Allgather");
  }
  std::vector<DeviceOfRank> ranks;
  ranks.reserve(all.size());
  for (const Told& told : all) {
    ranks.push_back({.rank = static_cast<int>(ranks.size()),
                     .node = told.node.data(),
                     .node_ranks = told.node_ranks,
                     .devices = told.devices,
                     .device = told.device,
                     .identity = told.identity.data(),
                     .trouble = told.trouble.data()});
  }
  check_placement(ranks);
}

ncclConfig_t config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace

Session::Session(MPI_Comm world, const Place& place, int device, std::string name) : name_(std::move(name)) {
  check_devices(world, place, device);
  const DeviceGuard guard(device);
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
    abort();  // what the device still waits for will not come
    return;
  }
  ncclCommDestroy(handle_);
}

std::unique_ptr<Session> Session::split(int color, [[maybe_unused]] MPI_Comm part, const Place& place,
                                        std::string name) {
  std::unique_ptr<Session> group(new Session(nullptr, std::move(name)));
  ncclConfig_t chosen = config();
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0)
  // The key keeps the order of the ranks here. The parent says when it has been taken.
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
  const auto deadline = std::chrono::steady_clock::now() + operation_timeout();
  while (result == ncclInProgress) {
    const ncclResult_t asked = ncclCommGetAsyncError(handle_, &result);
    if (asked != ncclSuccess) result = asked;
    if (result != ncclInProgress) break;
    if (std::chrono::steady_clock::now() > deadline) {
      timed_out(fmt::format("{} among {}", call, name_));
    }
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
  // It may itself wait for a network that is gone; the job ends whether it returns or not.
  auto ended = std::make_shared<std::promise<void>>();
  std::thread([handle = handle_, ended] {
    ncclCommAbort(handle);
    ended->set_value();
  }).detach();
  ended->get_future().wait_for(std::chrono::seconds(2));
  handle_ = nullptr;
}

}  // namespace lockstep::comm::nccl
