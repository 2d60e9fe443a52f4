#include "runtime/comm/cpu/request_check.h"

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
                           std::string_view label) {
  static_assert(std::is_trivially_copyable_v<Message>);
  mine_.request = request;
  mine_.rank = mpi::world_rank();
  mine_.label[label.copy(mine_.label.data(), mine_.label.size() - 1)] = 0;
  const int next = (node + 1) % nodes;
  const int before = (node + nodes - 1) % nodes;
  mpi::check(MPI_Irecv(&theirs_, sizeof theirs_, MPI_BYTE, before, kTag, lane, &requests_[0]), "MPI_Irecv");
  mpi::check(MPI_Isend(&mine_, sizeof mine_, MPI_BYTE, next, kTag, lane, &requests_[1]), "MPI_Isend");
}

bool RequestCheck::matched() {
  if (matched_) return true;
  int arrived = 0;
  mpi::check(MPI_Testall(2, requests_.data(), &arrived, MPI_STATUSES_IGNORE), "MPI_Testall");
  if (arrived == 0) return false;
  if (theirs_.request != mine_.request) {
    end_job_once(fmt::format(
        "ranks of different nodes call different operations: rank {} calls {}, but rank {} calls {}; every rank must call the same operations in the same order",
        mine_.rank, describe(mine_.request, mine_.label.data()), theirs_.rank,
        describe(theirs_.request, theirs_.label.data())));
  }
  matched_ = true;
  return true;
}

void RequestCheck::wait() {
  mpi::wait_until([this] { return matched(); });
}

}  // namespace lockstep::comm::cpu
