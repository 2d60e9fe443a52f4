#include "runtime/comm/mpi/collectives.h"

#include <algorithm>
#include <limits>

#include "common/error.h"
#include "runtime/comm/mpi/session.h"
#include "runtime/comm/mpi/wait.h"

namespace lockstep::comm::mpi {

void broadcast(MPI_Comm world, Buffer buffer, int root) {
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  auto* data = static_cast<std::byte*>(buffer.data);
  for (std::size_t begin = 0; begin < buffer.bytes(); begin += kPiece) {
    const auto bytes = static_cast<int>(std::min(kPiece, buffer.bytes() - begin));
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibcast(data + begin, bytes, MPI_BYTE, root, world, &request), "MPI_Ibcast");
    wait({&request, 1}, "MPI_Ibcast");
  }
}

void all_gather(MPI_Comm world, int rank, Buffer mine, void* all) {
  const int bytes = bytes_of_part(mine);
  const std::byte* place = static_cast<std::byte*>(all) + mine.bytes() * static_cast<std::size_t>(rank);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(mine.data == place ? MPI_IN_PLACE : mine.data, bytes, MPI_BYTE, all, bytes, MPI_BYTE,
                       world, &request),
        "MPI_Iallgather");
  wait({&request, 1}, "MPI_Iallgather");
}

int bytes_of_part(const Buffer& mine) {
  if (mine.bytes() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    fail("each rank's part must be smaller than 2 GiB: divide the data among several operations");
  }
  return static_cast<int>(mine.bytes());
}

}  // namespace lockstep::comm::mpi
