// Threads: safe from any.
#pragma once

#include <c10/core/Stream.h>

namespace lockstep::ddp {

/// The cudaStream_t of a stream of LibTorch's CUDA devices.
void* native_cuda_stream(c10::Stream stream);

}  // namespace lockstep::ddp
