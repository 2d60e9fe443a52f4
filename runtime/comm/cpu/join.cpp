#include "runtime/comm/cpu/join.h"

#include <array>
#include <optional>
#include <string>

#include "common/error.h"
#include "runtime/comm/mpi/session.h"

namespace lockstep::comm::cpu {
namespace {

// The reason of the first rank that has one; the same result on all ranks.
std::string first_reason(MPI_Comm world, const RankInfo& place, const std::string& mine) {
  const int has = mine.empty() ? place.size : place.rank;
  int first = 0;
  mpi::check(MPI_Allreduce(&has, &first, 1, MPI_INT, MPI_MIN, world), "MPI_Allreduce");
  if (first == place.size) return {};
  std::array<char, 256> text{};
  mine.copy(text.data(), text.size() - 1);
  mpi::check(MPI_Bcast(text.data(), static_cast<int>(text.size()), MPI_CHAR, first, world), "MPI_Bcast");
  return text.data();
}

bool share_cpus(const OperationSlots& slots, int ranks) {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int rank = 0; rank < ranks; ++rank) CPU_OR(&all, &all, &slots.area(rank).cpus);
  return CPU_COUNT(&all) < ranks;
}

Joined mpi_only(const RankInfo& place) {
  RankInfo alone = place;
  alone.local_rank = 0;
  alone.local_size = 1;
  alone.node = place.rank;
  alone.nodes = place.size;
  return {.slots = OperationSlots::create(1), .place = alone, .ranks = {place.rank}};
}

Joined join_node(MPI_Comm world, MPI_Comm node, const RankInfo& place) {
  std::optional<OperationSlots> slots;
  std::string why_not;
  shm::SegmentHandle segment;
  try {
    if (place.local_rank == 0) {
      slots = OperationSlots::create(place.local_size);
      segment = slots->segment();
    }
    mpi::check(MPI_Bcast(&segment, sizeof segment, MPI_BYTE, 0, node), "MPI_Bcast");
    if (place.local_rank != 0 && segment.descriptor >= 0) slots = OperationSlots::open(segment);
  } catch (const Error& error) {
    why_not = error.what();
    if (place.local_rank == 0) MPI_Bcast(&segment, sizeof segment, MPI_BYTE, 0, node);
  }
  why_not = first_reason(world, place, why_not);
  if (!why_not.empty()) {
    if (place.rank == 0) {
      fmt::print(stderr,
                 "lockstep: everything goes over MPI, since ranks of a node cannot share memory: {}\n",
                 why_not);
    }
    return mpi_only(place);
  }

  RankArea& mine = slots->area(place.local_rank);
  mine.rank = place.rank;
  mine.world_rank = mpi::world_rank();
  sched_getaffinity(0, sizeof mine.cpus, &mine.cpus);
  mpi::check(MPI_Barrier(node), "MPI_Barrier");
  std::vector<int> ranks(static_cast<std::size_t>(place.local_size));
  for (int rank = 0; rank < place.local_size; ++rank)
    ranks[static_cast<std::size_t>(rank)] = slots->area(rank).rank;
  const bool shared = share_cpus(*slots, place.local_size);
  return {.slots = std::move(*slots), .place = place, .ranks = std::move(ranks), .ranks_share_cpus = shared};
}

}  // namespace

Joined join(MPI_Comm world, const RankInfo& place) {
  MPI_Comm node = MPI_COMM_NULL;
  mpi::check(MPI_Comm_split(world, place.node, place.rank, &node), "MPI_Comm_split");
  auto joined = join_node(world, node, place);
  mpi::check(MPI_Comm_free(&node), "MPI_Comm_free");
  return joined;
}

}  // namespace lockstep::comm::cpu
