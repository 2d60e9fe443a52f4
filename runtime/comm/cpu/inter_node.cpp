#include "runtime/comm/cpu/inter_node.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "common/error.h"
#include "runtime/comm/cpu/mismatch.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/mpi/all_reduce.h"
#include "runtime/comm/mpi/session.h"
#include "runtime/comm/mpi/wait.h"

namespace lockstep::comm::cpu {
namespace {

// A node's request. Its neighbour gets it before data is exchanged, because a collective that is not the
// same everywhere can hang on one rank and succeed on another.
struct RequestMessage {
  OperationRequest request;
  std::int32_t rank = 0;
  std::array<char, kLabelBytes> label{};
};
static_assert(std::is_trivially_copyable_v<RequestMessage>);

// The bytes of a rank's part as an int.
int bytes_of_part(const Buffer& mine) {
  if (mine.bytes() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    fail("each rank's part must be smaller than 2 GiB: divide the data among several operations");
  }
  return static_cast<int>(mine.bytes());
}

}  // namespace

InterNode::InterNode(MPI_Comm world, const Place& place) : world_(world), place_(place), lane_place_(place) {
  mpi::check(MPI_Allreduce(&place.local_size, &lanes_, 1, MPI_INT, MPI_MIN, world), "MPI_Allreduce");
  // Ranks beyond the lanes exchange nothing.
  const int color = place.local_rank < lanes_ ? place.local_rank : MPI_UNDEFINED;
  mpi::check(MPI_Comm_split(world, color, place.node, &lane_), "MPI_Comm_split");
  lane_place_.rank = place.node;
  lane_place_.size = place.nodes;
}

InterNode::~InterNode() {
  if (lane_ != MPI_COMM_NULL) MPI_Comm_free(&lane_);
}

// Each node sends its request to the next node: if all neighbours agree, all nodes agree.
void InterNode::check_same_request(const OperationRequest& request, std::string_view label) {
  RequestMessage mine{.request = request, .rank = mpi::world_rank()};
  mine.label[label.copy(mine.label.data(), mine.label.size() - 1)] = 0;
  RequestMessage theirs;
  const int next = (place_.node + 1) % place_.nodes;
  const int before = (place_.node + place_.nodes - 1) % place_.nodes;
  mpi::exchange(&mine, sizeof mine, next, &theirs, sizeof theirs, before, 1, lane_);
  if (theirs.request == request) return;
  end_job_once(fmt::format(
      "ranks of different nodes call different operations: rank {} calls {}, but rank {} calls "
      "{}; every rank must call the same operations in the same order",
      mine.rank, describe(request, label), theirs.rank, describe(theirs.request, theirs.label.data())));
}

void InterNode::all_reduce(Buffer slice, ScaledOp scaled) {
  mpi::all_reduce(lane_, lane_place_, slice, scaled, scratch_);
}

// In pieces of 1 GiB, because MPI counts in int.
void InterNode::broadcast(Buffer buffer, int root) {
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  auto* data = static_cast<std::byte*>(buffer.data);
  for (std::size_t begin = 0; begin < buffer.bytes(); begin += kPiece) {
    const auto bytes = static_cast<int>(std::min(kPiece, buffer.bytes() - begin));
    MPI_Request request = MPI_REQUEST_NULL;
    mpi::check(MPI_Ibcast(data + begin, bytes, MPI_BYTE, root, world_, &request), "MPI_Ibcast");
    mpi::wait({&request, 1}, "MPI_Ibcast");
  }
}

void InterNode::all_gather(Buffer mine, void* all) {
  const int bytes = bytes_of_part(mine);
  const std::byte* place =
      static_cast<std::byte*>(all) + mine.bytes() * static_cast<std::size_t>(place_.rank);
  MPI_Request request = MPI_REQUEST_NULL;
  mpi::check(MPI_Iallgather(mine.data == place ? MPI_IN_PLACE : mine.data, bytes, MPI_BYTE, all, bytes,
                            MPI_BYTE, world_, &request),
             "MPI_Iallgather");
  mpi::wait({&request, 1}, "MPI_Iallgather");
}

void InterNode::reduce_scatter(void* all, Buffer mine, ScaledOp scaled) {
  bytes_of_part(mine);
  mpi::reduce_scatter(world_, place_, all, mine, scaled, scratch_);
}

void InterNode::barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  mpi::check(MPI_Ibarrier(world_, &request), "MPI_Ibarrier");
  mpi::wait({&request, 1}, "MPI_Ibarrier");
}

}  // namespace lockstep::comm::cpu
