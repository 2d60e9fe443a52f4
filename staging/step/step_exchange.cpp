#include "staging/step/step_exchange.h"

#include <charconv>

#include "common/error.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/transfer/copy/chunk_plan.h"

namespace lockstep::transfer {

Exchange::Options exchange_of(const Hello& hello, const std::string& ports) {
  Exchange::Options exchange;
  exchange.key = RendezvousAddress::from_environment().key;
  exchange.step = fmt::format("{}.{}", hello.job, hello.step);
  exchange.node_id = hello.node_id;
  exchange.chunk_bytes = ChunkPlan::kChunkBytes;
  if (!ports.empty()) {
    const std::size_t dash = ports.find('-');
    const char* const end = ports.data() + ports.size();
    const auto low = std::from_chars(ports.data(), end, exchange.first_port);
    if (dash == std::string::npos || low.ptr != ports.data() + dash ||
        std::from_chars(low.ptr + 1, end, exchange.last_port).ptr != end) {
      fail_usage("--ports '{}': must be LOW-HIGH", ports);
    }
  }
  return exchange;
}

}  // namespace lockstep::transfer
