#include "runtime/comm/mpi/across.h"

#include <array>
#include <type_traits>
#include <vector>

#include "common/error.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/mpi/all_reduce.h"
#include "runtime/comm/mpi/collectives.h"
#include "runtime/comm/mpi/session.h"
#include "runtime/comm/mpi/wait.h"
#include "runtime/comm/shm/mismatch.h"

namespace lockstep::comm::mpi {
namespace {

// What a node asks for, as its neighbour gets it before anything is exchanged: a collective that is not the
// same everywhere can hang on one rank and succeed on another.
struct Header {
  shm::Request request;
  std::int32_t rank = 0;
  std::array<char, shm::kLabelBytes> label{};
};
static_assert(std::is_trivially_copyable_v<Header>);

class MpiAcross : public shm::Across {
 public:
  MpiAcross(MPI_Comm world, const Place& place) : world_(world), place_(place), lane_place_(place) {
    check(MPI_Allreduce(&place.local_size, &lanes_, 1, MPI_INT, MPI_MIN, world), "MPI_Allreduce");
    // Ranks beyond the lanes exchange nothing themselves.
    const int color = place.local_rank < lanes_ ? place.local_rank : MPI_UNDEFINED;
    check(MPI_Comm_split(world, color, place.node, &lane_), "MPI_Comm_split");
    lane_place_.rank = place.node;
    lane_place_.size = place.nodes;
  }
  ~MpiAcross() override {
    if (lane_ != MPI_COMM_NULL) MPI_Comm_free(&lane_);
  }
  MpiAcross(const MpiAcross&) = delete;
  MpiAcross& operator=(const MpiAcross&) = delete;

  int lanes() const override { return lanes_; }

  // Each node tells the next one: where all neighbours agree all nodes do.
  void agree(const shm::Request& request, std::string_view label) override {
    Header mine{.request = request, .rank = world_rank()};
    mine.label[label.copy(mine.label.data(), mine.label.size() - 1)] = 0;
    Header theirs;
    const int next = (place_.node + 1) % place_.nodes;
    const int before = (place_.node + place_.nodes - 1) % place_.nodes;
    exchange(&mine, sizeof mine, next, &theirs, sizeof theirs, before, 1, lane_);
    if (theirs.request == request) return;
    end_job_once(
        fmt::format("the ranks of different nodes do different things: rank {} asks for {}, but rank {} for "
                    "{}; every rank must ask for the same operations in the same order",
                    mine.rank, shm::describe(request, label), theirs.rank,
                    shm::describe(theirs.request, theirs.label.data())));
  }

  void all_reduce(Buffer slice, Finish finish) override {
    mpi::all_reduce(lane_, lane_place_, slice, finish, scratch_);
  }
  void broadcast(Buffer buffer, int root) override { mpi::broadcast(world_, buffer, root); }
  void all_gather(Buffer mine, void* all) override { mpi::all_gather(world_, place_.rank, mine, all); }
  void reduce_scatter(void* all, Buffer mine, Finish finish) override {
    bytes_of_part(mine);
    mpi::reduce_scatter(world_, place_, all, mine, finish, scratch_);
  }
  void barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(world_, &request), "MPI_Ibarrier");
    wait({&request, 1}, "MPI_Ibarrier");
  }

 private:
  MPI_Comm world_;
  MPI_Comm lane_ = MPI_COMM_NULL;
  Place place_;
  Place lane_place_;  // as if each node were one rank
  int lanes_ = 1;
  std::vector<std::byte> scratch_;
};

}  // namespace

std::unique_ptr<shm::Across> connect_nodes(MPI_Comm world, const Place& place) {
  return std::make_unique<MpiAcross>(world, place);
}

}  // namespace lockstep::comm::mpi
