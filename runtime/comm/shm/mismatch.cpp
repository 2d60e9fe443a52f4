#include "runtime/comm/shm/mismatch.h"

#include <chrono>
#include <thread>

#include "common/error.h"
#include "runtime/comm/failure.h"

namespace lockstep::comm::shm {
namespace {

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::average:
      return "average";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
    case ReduceOp::bit_or:
      return "bit_or";
  }
  return "?";
}

}  // namespace

std::string describe(const Request& request, std::string_view label) {
  std::string text = fmt::format("{} of {}", shm::name_of(request.kind), label);
  if (request.step != 0) text += fmt::format(" in step {}", request.step);
  switch (request.kind) {
    case Kind::all_reduce:
    case Kind::reduce_scatter:
      return text +
             fmt::format(" ({} × {}, {})", request.count, comm::name_of(request.type), name_of(request.op));
    case Kind::broadcast:
      return text +
             fmt::format(" ({} × {} from rank {})", request.count, comm::name_of(request.type), request.root);
    case Kind::all_gather:
      return text + fmt::format(" ({} × {} each)", request.count, comm::name_of(request.type));
    case Kind::barrier:
    case Kind::end:
      return text;
  }
  return text;
}

void end_job_by_mismatch(const Board& board, const Place& place, int other, std::uint64_t number) {
  // The first rank speaks for the node; it may still be computing, so it gets a while.
  if (place.local_rank != 0) std::this_thread::sleep_for(std::chrono::seconds(5));
  const auto what = [&](int local_rank) {
    const Slot& slot = board.slot(local_rank, number);
    return fmt::format("rank {} asks for {}", board.of(local_rank).world_rank,
                       describe(slot.request, slot.label));
  };
  end_job_once(fmt::format(
      "the ranks of {} do different things: {}, but {}; every rank must ask for the same operations in the "
      "same order",
      place.node_name, what(0), what(other)));
}

void end_job_by_leaving(const Board& board, const Place& place, int gone, const std::string& operation) {
  end_job_once(fmt::format(
      "rank {} on {} left World, or the group, before {}; every rank must ask for the same operations",
      board.of(gone).world_rank, place.node_name, operation));
}

}  // namespace lockstep::comm::shm
