// An object's state, written to a LibTorch archive and read from it.
#pragma once

#include <torch/torch.h>

#include <sstream>

namespace lockstep::testing {

/// `save` writes to an archive, which `object` loads.
template <typename Type, typename Save>
void load_from(Type& object, const Save& save) {
  torch::serialize::OutputArchive written;
  save(written);
  std::stringstream bytes;
  written.save_to(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  object.load(archive);
}

}  // namespace lockstep::testing
