// Lists of lengths that several benchmarks plan.
//
// Threads: functions are safe from any thread.
#pragma once

#include <string>

#include "runtime/data/plan/planner.h"

namespace lockstep::bench {

struct List {
  std::string name;
  data::Lengths lengths;
};

/// The folder of tests/data/lengths, unpacked.
std::string lengths_folder();

/// Requests of an LLM service. Throws Error if the file cannot be read.
List azure_conv();

/// Synthetic long documents: a Pareto tail of exponent 1.35, most with 4,200 to 20,000 tokens, up to 126,000.
List heavy_tail();

/// The same list with lengths ÷ `divisor`, and none over the cap.
List shortened(List list, std::uint32_t divisor, std::uint64_t cap);

}  // namespace lockstep::bench
