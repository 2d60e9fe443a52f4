#include "runtime/comm/cpu/mpi_inter_node.h"

#include <array>
#include <type_traits>
#include <vector>

#include "common/error.h"
#include "runtime/comm/cpu/mismatch.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/mpi/all_reduce.h"
#include "runtime/comm/mpi/collectives.h"
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

class MpiInterNode : public InterNode {
 public:
  MpiInterNode(MPI_Comm world, const Place& place) : world_(world), place_(place), lane_place_(place) {
    mpi::check(MPI_Allreduce(&place.local_size, &lanes_, 1, MPI_INT, MPI_MIN, world), "MPI_Allreduce");
    // Ranks beyond the lanes exchange nothing.
    const int color = place.local_rank < lanes_ ? place.local_rank : MPI_UNDEFINED;
    mpi::check(MPI_Comm_split(world, color, place.node, &lane_), "MPI_Comm_split");
    lane_place_.rank = place.node;
    lane_place_.size = place.nodes;
  }
  ~MpiInterNode() override {
    if (lane_ != MPI_COMM_NULL) MPI_Comm_free(&lane_);
  }
  MpiInterNode(const MpiInterNode&) = delete;
  MpiInterNode& operator=(const MpiInterNode&) = delete;

  int lanes() const override { return lanes_; }

  // Each node sends its request to the next node: if all neighbours agree, all nodes agree.
  void check_same_request(const OperationRequest& request, std::string_view label) override {
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

  void all_reduce(Buffer slice, ScaledOp scaled) override {
    mpi::all_reduce(lane_, lane_place_, slice, scaled, scratch_);
  }
  void broadcast(Buffer buffer, int root) override { mpi::broadcast(world_, buffer, root); }
  void all_gather(Buffer mine, void* all) override { mpi::all_gather(world_, place_.rank, mine, all); }
  void reduce_scatter(void* all, Buffer mine, ScaledOp scaled) override {
    mpi::bytes_of_part(mine);
    mpi::reduce_scatter(world_, place_, all, mine, scaled, scratch_);
  }
  void barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    mpi::check(MPI_Ibarrier(world_, &request), "MPI_Ibarrier");
    mpi::wait({&request, 1}, "MPI_Ibarrier");
  }

 private:
  MPI_Comm world_;
  MPI_Comm lane_ = MPI_COMM_NULL;
  Place place_;
  Place lane_place_;  // with one rank per node
  int lanes_ = 1;
  std::vector<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<InterNode> connect_nodes(MPI_Comm world, const Place& place) {
  return std::make_unique<MpiInterNode>(world, place);
}

}  // namespace lockstep::comm::cpu
