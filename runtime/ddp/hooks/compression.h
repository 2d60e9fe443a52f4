// Sends gradients in 16 bits, as PyTorch's fp16_compress_hook and bf16_compress_hook do. With one rank per node, and on
// GPUs, this halves the bytes between nodes. With several ranks per node on the CPU it saves a quarter (6 of 8 bytes per
// gradient): a node's sum is sent as f32, and the result in 16 bits.
//
// On the CPU the mean is computed in f32 and rounded once, so no sum overflows.
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
