// The stream of CUDA's runtime that one of LibTorch's streams stands for. No test without a GPU runs this.
#include "runtime/ddp/cuda_stream.h"

#include <c10/cuda/CUDAStream.h>

namespace lockstep::ddp {

void* native_cuda_stream(c10::Stream stream) {
  return c10::cuda::CUDAStream(stream).stream();
}

}  // namespace lockstep::ddp
