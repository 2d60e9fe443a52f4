// Reduces the elements of several ranks on this CPU: in the order of the inputs, in one pass, halves as f32.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "runtime/comm/communicator.h"

namespace lockstep::comm {

/// The operation and the scale of a reduction.
struct ScaledOp {
  ReduceOp op = ReduceOp::sum;
  std::optional<double> scale = std::nullopt;
};
/// For `options` among `ranks` ranks: an average becomes a sum with a scale. Reads `options.scale` now.
ScaledOp scaled_op_of(const ReduceOptions& options, int ranks);

/// into[r][i] = scale × (inputs[0][i] op inputs[1][i] op …) for every r; `into` may be the inputs. Throws
/// UsageError for a scale on integers, for bit_or on floating-point elements, for sum_or_max on others than i64, and for average, which
/// scaled_op_of() replaces.
void reduce_to_all(std::span<const void* const> inputs, std::span<void* const> into, std::size_t count,
                   DataType type, ScaledOp scaled);

/// The same for one result.
inline void reduce(std::span<const void* const> inputs, void* into, std::size_t count, DataType type,
                   ScaledOp scaled) {
  reduce_to_all(inputs, {&into, 1}, count, type, scaled);
}

/// Whether elements of this type are summed, and sent to other nodes, as f32.
bool is_half(DataType type);

/// Reduces halves without rounding the result: into[i] = inputs[0][i] op inputs[1][i] op …
void reduce_wide(std::span<const void* const> inputs, float* into, std::size_t count, DataType type,
                 ReduceOp op);

/// Rounds to the half type.
void narrow(const float* from, void* into, std::size_t count, DataType type);

}  // namespace lockstep::comm
