// Gradients that travel in 16 bits: half the bytes between nodes. PyTorch's fp16_compress_hook and
// bf16_compress_hook.
//
// The mean is made as f32 and rounded once, so that no sum overflows. fp16 keeps 11 bits and ranges from 6e-8
// to 65504: with Average::tokens, or a scaled loss, gradients are in its range. bf16 keeps 8 bits and the
// whole range of f32.
//
// Threads: as CommHook.
#pragma once

#include <memory>

#include "runtime/ddp/comm_hook.h"

namespace lockstep {

std::shared_ptr<CommHook> fp16_compress_hook();
std::shared_ptr<CommHook> bf16_compress_hook();

}  // namespace lockstep
