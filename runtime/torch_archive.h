// Reads a value of a LibTorch archive.
//
// Threads: those of the archive.
#pragma once

#include <torch/torch.h>

#include "common/error.h"

namespace lockstep {

/// Throws Error if the archive does not have it.
inline c10::IValue value_in(torch::serialize::InputArchive& archive, const char* name) {
  c10::IValue value;
  if (!archive.try_read(name, value)) fail("the saved state does not have '{}'", name);
  return value;
}

}  // namespace lockstep
