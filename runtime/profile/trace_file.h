// Writes spans as a trace in Google's trace event format ("Trace Event Format", a JSON object with `traceEvents`), which
// https://ui.perfetto.dev and chrome://tracing open. Each rank is a process of the trace; it has a track for its steps,
// one for its phases, one for each thread, and one for each collective operation in flight.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/profile/spans.h"

namespace lockstep::profile {

/// The rank of a part of a trace.
struct TraceRank {
  int rank = 0;
  std::string node;
  std::int64_t clock_offset_ns = 0;  ///< how far its clock is ahead of the trace's
};

/// The events of one rank, separated by ",\n": a part of a trace.
std::string trace_events(const Spans& spans, const TraceRank& rank);

/// A trace of these parts; empty ones are left out.
std::string trace_of(const std::vector<std::string>& parts);

/// The reverse of trace_of(): all parts of a trace, joined to one. Throws Error naming `file` if trace_of() did not
/// make it.
std::string parts_of(std::string_view trace, std::string_view file);

}  // namespace lockstep::profile
