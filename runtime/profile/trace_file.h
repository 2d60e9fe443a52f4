// Writes spans as a trace in Google's trace event format ("Trace Event Format", a JSON object with `traceEvents`), which
// https://ui.perfetto.dev and chrome://tracing open. Each rank is a process of the trace; it has a track for its steps,
// one for its phases, one for each thread, and one for each collective operation in flight.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/profile/spans.h"

namespace lockstep::profile {

/// The rank of a trace.
struct TraceRank {
  int rank = 0;
  std::string node{};
  std::int64_t clock_offset_ns = 0;  ///< how far its clock is ahead of that of the run's other traces
  std::string run{};                 ///< JOB.STEP
  int ranks = 1;                     ///< that leave traces in the same folder
};

/// "trace-000003.json".
std::string trace_name(int rank);

/// A trace with the events of `earlier`, which is empty or a trace of this rank, and of these spans. Its first line names
/// the run, its last line ends it, and each line between them is an event: lockstep-report joins the traces of a run
/// (exporters/report/trace.cpp).
std::string trace_of(const Spans& spans, const TraceRank& rank, std::string earlier = {});

}  // namespace lockstep::profile
