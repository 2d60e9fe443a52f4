// The tensors of a batch of tokens that need not travel to the device, because they follow from those that do.
//
// Threads: safe from any. The work goes to the calling thread's current stream.
#pragma once

#include "runtime/data/loader_options.h"

namespace lockstep::data {

/// Makes int64 tokens out of narrow ones (int16 stands for uint16), and from cu_seqlens the positions, the attention mask
/// of padded batches, and the loss mask unless a transform has made it. The host waits for nothing.
void complete_on_device(Batch& batch);

}  // namespace lockstep::data
