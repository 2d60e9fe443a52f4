// Reducing the same elements of several ranks on this CPU: in the order given, in one pass, halves as f32.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "runtime/comm/communicator.h"

namespace lockstep::comm {

/// What `reduce` is to be told so that it does what `options` ask for among `ranks` ranks; the scale is read
/// now.
struct Finish {
  ReduceOp op = ReduceOp::sum;
  std::optional<double> scale;
};
Finish finish_of(const ReduceOptions& options, int ranks);

/// into[i] = scale × (inputs[0][i] op inputs[1][i] op …); `into` may be one of the inputs. Throws UsageError
/// for a scale on integers, bit_or on floating-point elements, and average, which finish_of() resolves.
void reduce(std::span<const void* const> inputs, void* into, std::size_t count, DataType type, ReduceOp op,
            std::optional<double> scale);

}  // namespace lockstep::comm
