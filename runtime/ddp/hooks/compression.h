// Sends gradients in 16 bits, which halves the bytes between nodes, as PyTorch's fp16_compress_hook and
// bf16_compress_hook do.
//
// The mean is computed in f32 and rounded once, so no sum overflows.
// - fp16 keeps 11 bits and ranges from 6e-8 to 65504. Gradients are in that range if averaged by count, or with a
//   scaled loss.
// - bf16 keeps 8 bits and the whole range of f32.
//
// Threads: as for CommHook.
#pragma once

#include <memory>

#include "runtime/ddp/comm_hook.h"

namespace lockstep {

std::shared_ptr<CommHook> fp16_compress_hook();
std::shared_ptr<CommHook> bf16_compress_hook();

}  // namespace lockstep
