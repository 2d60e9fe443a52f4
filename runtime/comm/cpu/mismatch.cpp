#include "runtime/comm/cpu/mismatch.h"

#include <chrono>
#include <thread>

#include "common/error.h"
#include "common/process.h"
#include "runtime/comm/failure.h"

namespace lockstep::comm::cpu {

std::string describe(const OperationRequest& request, std::string_view label) {
  std::string text = fmt::format("{} of {}", cpu::name_of(request.kind), label);
  if (request.step != 0) text += fmt::format(" in step {}", request.step);
  switch (request.kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce_scatter:
      return text + fmt::format(" ({} × {}, {})", request.count, comm::name_of(request.type),
                                comm::name_of(request.op));
    case OperationKind::broadcast:
      return text +
             fmt::format(" ({} × {} from rank {})", request.count, comm::name_of(request.type), request.root);
    case OperationKind::all_gather:
      return text + fmt::format(" ({} × {} each)", request.count, comm::name_of(request.type));
    case OperationKind::exchange:
    case OperationKind::barrier:
    case OperationKind::end:
      return text;
  }
  return text;
}

void end_job_by_mismatch(const OperationSlots& slots, const RankInfo& place, int other,
                         std::uint64_t number) {
  // The first rank of the node prints. It may still be computing, so wait for it.
  if (place.local_rank != 0) std::this_thread::sleep_for(std::chrono::seconds(5));
  const auto what = [&](int local_rank) {
    const OperationSlot& slot = slots.slot(local_rank, number);
    return fmt::format("rank {} calls {}", slots.area(local_rank).world_rank,
                       describe(slot.request, slot.label));
  };
  end_job_once(fmt::format(
      "the ranks of {} call different operations: {}, but {}; every rank must call the same operations in the same order (docs/users/ddp.md)",
      place.node_name, what(0), what(other)));
}

void end_job_by_leaving(const OperationSlots& slots, const RankInfo& place, int left,
                        const std::string& operation) {
  end_job_once(fmt::format(
      "{} left World, or the group, before {}; every rank must call the same operations (docs/users/ddp.md)",
      rank_name(slots.area(left).world_rank, place.node_name), operation));
}

}  // namespace lockstep::comm::cpu
