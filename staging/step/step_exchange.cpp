#include "staging/step/step_exchange.h"

#include <charconv>

#include "common/error.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/transfer/copy/chunk_plan.h"

namespace lockstep::transfer {

Exchange::Options exchange_of(const StepCall& call) {
  Exchange::Options exchange;
  exchange.key = RendezvousAddress::from_environment().key;
  exchange.step = fmt::format("{}.{}", call.hello.job, call.hello.step);
  exchange.node_id = call.hello.node_id;
  exchange.chunk_bytes = ChunkPlan::kChunkBytes;
  if (!call.ports.empty()) {
    const std::size_t dash = call.ports.find('-');
    const char* const end = call.ports.data() + call.ports.size();
    const auto low = std::from_chars(call.ports.data(), end, exchange.first_port);
    if (dash == std::string::npos || low.ptr != call.ports.data() + dash ||
        std::from_chars(low.ptr + 1, end, exchange.last_port).ptr != end) {
      fail_usage("--ports '{}': must be LOW-HIGH", call.ports);
    }
  }
  return exchange;
}

}  // namespace lockstep::transfer
