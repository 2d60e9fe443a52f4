#include "runtime/comm/cpu/request_check.h"

#include <cstring>
#include <type_traits>

#include "common/error.h"
#include "runtime/comm/cpu/mismatch.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/mpi/session.h"
#include "runtime/comm/mpi/wait.h"

namespace lockstep::comm::cpu {
namespace {

constexpr int kTag = 1;

}  // namespace

RequestCheck::RequestCheck(MPI_Comm lane, int node, int nodes, const OperationRequest& request,
                           std::string_view label)
    : lane_(lane), next_((node + 1) % nodes), before_((node + nodes - 1) % nodes) {
  static_assert(std::is_trivially_copyable_v<Message>);
  mine_.request = request;
  mine_.rank = mpi::world_rank();
  mine_.label[label.copy(mine_.label.data(), mine_.label.size() - 1)] = 0;
}

void RequestCheck::send(std::span<const std::byte> data) {
  state_ = State::sent;
  std::memcpy(sent_.get(), &mine_, sizeof mine_);
  if (!data.empty()) std::memcpy(sent_.get() + kDataBegin, data.data(), data.size());
  mpi::check(MPI_Irecv(received_.get(), static_cast<int>(kDataBegin + kMaxData), MPI_BYTE, before_, kTag,
                       lane_, &requests_[0]),
             "MPI_Irecv");
  mpi::check(MPI_Isend(sent_.get(), static_cast<int>(kDataBegin + data.size()), MPI_BYTE, next_, kTag, lane_,
                       &requests_[1]),
             "MPI_Isend");
}

bool RequestCheck::matched() {
  const auto ended = [](MPI_Request& request) {
    int done = 0;
    mpi::check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  };
  // Compares as soon as the other request is here, because the next node may be late.
  if (state_ == State::sent && ended(requests_[0])) {
    compare();
    state_ = State::equal;
  }
  if (state_ == State::equal && ended(requests_[1])) state_ = State::matched;
  return state_ == State::matched;
}

void RequestCheck::compare() const {
  Message theirs;
  std::memcpy(&theirs, received_.get(), sizeof theirs);
  if (theirs.request == mine_.request) return;
  end_job_once(fmt::format(
      "ranks of different nodes call different operations: rank {} calls {}, but rank {} calls {}; every rank must call the same operations in the same order (docs/users/ddp.md)",
      mine_.rank, describe(mine_.request, mine_.label.data()), theirs.rank,
      describe(theirs.request, theirs.label.data())));
}

void RequestCheck::wait() {
  mpi::wait_until([this] { return matched(); });
}

}  // namespace lockstep::comm::cpu
