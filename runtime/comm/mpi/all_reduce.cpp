#include "runtime/comm/mpi/all_reduce.h"

#include <algorithm>

#include "runtime/comm/mpi/session.h"
#include "runtime/comm/mpi/wait.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm::mpi {
namespace {

// Up to this size one message with all elements is faster than two steps with parts.
constexpr std::size_t kMaxOneStep = std::size_t{16} << 10;
// Larger buffers are reduced in segments, which limits the scratch memory.
constexpr std::size_t kSegment = std::size_t{64} << 20;

int as_int(std::size_t value) {
  return static_cast<int>(value);
}

void reduce_in_one_step(MPI_Comm world, const Place& place, Buffer buffer, ScaledOp scaled,
                        std::vector<std::byte>& scratch) {
  const std::size_t bytes = buffer.bytes();
  scratch.resize(std::max(scratch.size(), bytes * static_cast<std::size_t>(place.size)));
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(buffer.data, as_int(bytes), MPI_BYTE, scratch.data(), as_int(bytes), MPI_BYTE, world,
                       &request),
        "MPI_Iallgather");
  wait({&request, 1}, "MPI_Iallgather");
  std::vector<const void*> inputs;
  inputs.reserve(static_cast<std::size_t>(place.size));
  for (int rank = 0; rank < place.size; ++rank) {
    inputs.push_back(scratch.data() + bytes * static_cast<std::size_t>(rank));
  }
  reduce(inputs, buffer.data, buffer.count, buffer.type, scaled);
}

// Collects the elements of this rank's part from all ranks and reduces them to `into`. `part(rank)` returns
// where the elements for that rank lie here, and how many there are.
template <typename Part>
void collect_and_reduce(MPI_Comm world, const Place& place, Part part, Buffer into, ScaledOp scaled,
                        std::vector<std::byte>& scratch) {
  const std::size_t element = size_of(into.type);
  const std::size_t bytes = into.bytes();
  scratch.resize(std::max(scratch.size(), bytes * static_cast<std::size_t>(place.size)));

  // In round k each rank sends to the k-th rank after it, so no rank gets two messages at once.
  std::vector<const void*> inputs(static_cast<std::size_t>(place.size));
  inputs[static_cast<std::size_t>(place.rank)] = part(place.rank).first;
  for (int round = 1; round < place.size; ++round) {
    const int to = (place.rank + round) % place.size;
    const int from = (place.rank - round + place.size) % place.size;
    const auto [send, count] = part(to);
    std::byte* receive = scratch.data() + static_cast<std::size_t>(round - 1) * bytes;
    exchange(send, count * element, to, receive, bytes, from, 0, world);
    inputs[static_cast<std::size_t>(from)] = receive;
  }
  reduce(inputs, into.data, into.count, into.type, scaled);
}

void reduce_in_parts(MPI_Comm world, const Place& place, Buffer buffer, ScaledOp scaled,
                     std::vector<std::byte>& scratch) {
  const std::size_t element = size_of(buffer.type);
  const auto begin_of = [&](int rank) {
    return part_begin(buffer.count, static_cast<std::size_t>(rank), static_cast<std::size_t>(place.size),
                      buffer.type);
  };
  auto* data = static_cast<std::byte*>(buffer.data);
  const auto part = [&](int rank) {
    return std::pair(data + begin_of(rank) * element, begin_of(rank + 1) - begin_of(rank));
  };
  const Buffer mine{part(place.rank).first, part(place.rank).second, buffer.type};
  collect_and_reduce(world, place, part, mine, scaled, scratch);

  for (int round = 1; round < place.size; ++round) {
    const int to = (place.rank + round) % place.size;
    const int from = (place.rank - round + place.size) % place.size;
    const auto [into, count] = part(from);
    exchange(mine.data, mine.bytes(), to, into, count * element, from, 2, world);
  }
}

}  // namespace

void all_reduce(MPI_Comm world, const Place& place, Buffer buffer, ScaledOp scaled,
                std::vector<std::byte>& scratch) {
  if (buffer.bytes() * static_cast<std::size_t>(place.size) <= kMaxOneStep) {
    return reduce_in_one_step(world, place, buffer, scaled, scratch);
  }
  const std::size_t element = size_of(buffer.type);
  const std::size_t step = kSegment / element;
  for (std::size_t begin = 0; begin < buffer.count; begin += step) {
    const Buffer segment{static_cast<std::byte*>(buffer.data) + begin * element,
                         std::min(step, buffer.count - begin), buffer.type};
    reduce_in_parts(world, place, segment, scaled, scratch);
  }
}

void reduce_scatter(MPI_Comm world, const Place& place, const void* all, Buffer mine, ScaledOp scaled,
                    std::vector<std::byte>& scratch) {
  const auto part = [&](int rank) {
    return std::pair(static_cast<const std::byte*>(all) + mine.bytes() * static_cast<std::size_t>(rank),
                     mine.count);
  };
  collect_and_reduce(world, place, part, mine, scaled, scratch);
}

}  // namespace lockstep::comm::mpi
