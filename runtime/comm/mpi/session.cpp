#include "runtime/comm/mpi/session.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <string>
#include <vector>

#include "common/environment.h"
#include "common/error.h"
#include "common/process.h"
#include "runtime/comm/failure.h"

#ifdef OPEN_MPI
// MPI_Abort prints eight lines, which hide the line with the reason, and then calls this function. Libmpi
// exports it for its own tools; another version may not have it.
extern "C" [[gnu::weak, gnu::visibility("default")]] int ompi_mpi_abort(MPI_Comm comm, int exit_code);
#endif

namespace lockstep::comm::mpi {
namespace {

std::atomic<bool> initialised_by_world{false};

// A rank without a connection to its launcher ends before Open MPI cleans up, and Open MPI's files would stay
// in /dev/shm. The ranks that still need that memory have mapped it.
void unlink_segments() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    for (const char* name : {"/dev/shm/vader_segment.", "/dev/shm/sm_segment."}) {
      if (const auto at = line.find(name); at != std::string::npos) ::unlink(line.c_str() + at);
    }
  }
}

}  // namespace

RankInfo find_place(MPI_Comm world) {
  RankInfo place;
  place.node_name = lockstep::node_name();
  check(MPI_Comm_rank(world, &place.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(world, &place.size), "MPI_Comm_size");

  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, place.rank, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");
  if (const auto ranks = environment::get_integer("LOCKSTEP_RANKS_PER_NODE")) {
    constexpr long kMax = 1'000'000;
    if (*ranks < 1 || *ranks > kMax) {
      fail_usage("LOCKSTEP_RANKS_PER_NODE={} must be from 1 to {}", *ranks, kMax);
    }
    int on_machine = 0;
    check(MPI_Comm_rank(node, &on_machine), "MPI_Comm_rank");
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(node, on_machine / static_cast<int>(*ranks), place.rank, &part), "MPI_Comm_split");
    check(MPI_Comm_free(&node), "MPI_Comm_free");
    node = part;
  }
  check(MPI_Comm_rank(node, &place.local_rank), "MPI_Comm_rank");
  check(MPI_Comm_size(node, &place.local_size), "MPI_Comm_size");

  // The first rank of a node identifies it, and nodes are ordered by it.
  int first = place.rank;
  check(MPI_Bcast(&first, 1, MPI_INT, 0, node), "MPI_Bcast");
  check(MPI_Comm_free(&node), "MPI_Comm_free");
  std::vector<int> firsts(static_cast<std::size_t>(place.size));
  check(MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, world), "MPI_Allgather");
  std::sort(firsts.begin(), firsts.end());
  firsts.erase(std::unique(firsts.begin(), firsts.end()), firsts.end());
  place.nodes = static_cast<int>(firsts.size());
  place.node = static_cast<int>(std::lower_bound(firsts.begin(), firsts.end(), first) - firsts.begin());
  return place;
}

Session::Session(int& argc, char**& argv) {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (finalised != 0)
    fail_usage(
        "MPI is already finalised in this process and cannot start again: create World before MPI_Finalize");
  int provided = MPI_THREAD_SINGLE;
  if (initialised == 0) {
    const Deadline deadline(
        "MPI_Init",
        "MPI starts the ranks together, and one is missing: if the nodes are slow to start the program, set LOCKSTEP_TIMEOUT to more seconds");
    check(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    initialised_here_ = initialised_by_world = true;
  } else {
    check(MPI_Query_thread(&provided), "MPI_Query_thread");
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    fail(
        "MPI does not allow calls from several threads (MPI_THREAD_MULTIPLE), but gradients travel on a separate thread: initialise MPI with MPI_THREAD_MULTIPLE, or use an MPI that supports it");
  }
  const Deadline deadline("the start of MPI among all ranks");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  place_ = find_place(world_);
}

Session::~Session() {
  const Deadline deadline("MPI_Finalize");
  MPI_Comm_free(&world_);
  if (initialised_here_) MPI_Finalize();
}

bool ends_with_world() {
  return initialised_by_world;
}

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  await_verdict();
  MPI_Error_string(code, text.data(), &length);
  fail("{}: {}", call, std::string_view(text.data(), static_cast<std::size_t>(length)));
}

void abort_job(int exit_code) {
  unlink_segments();
#ifdef OPEN_MPI
  if (ompi_mpi_abort != nullptr) ompi_mpi_abort(MPI_COMM_WORLD, exit_code);
#endif
  MPI_Abort(MPI_COMM_WORLD, exit_code);
}

}  // namespace lockstep::comm::mpi
