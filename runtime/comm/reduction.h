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
  std::optional<double> scale = std::nullopt;
};
Finish finish_of(const ReduceOptions& options, int ranks);

/// into[r][i] = scale × (inputs[0][i] op inputs[1][i] op …) for every r; `into` may be the inputs themselves.
/// Throws UsageError for a scale on integers, bit_or on floating-point elements, and average, which
/// finish_of() resolves.
void reduce_to_all(std::span<const void* const> inputs, std::span<void* const> into, std::size_t count,
                   DataType type, Finish finish);

/// The same for one result.
inline void reduce(std::span<const void* const> inputs, void* into, std::size_t count, DataType type,
                   Finish finish) {
  reduce_to_all(inputs, {&into, 1}, count, type, finish);
}

/// Whether sums of this type are made, and cross nodes, as f32.
bool is_half(DataType type);

/// Sums (or maxima, minima) of halves without rounding them: into[i] = inputs[0][i] op inputs[1][i] op …
void reduce_wide(std::span<const void* const> inputs, float* into, std::size_t count, DataType type,
                 ReduceOp op);

/// Rounds to the half type.
void narrow(const float* from, void* into, std::size_t count, DataType type);

}  // namespace lockstep::comm
