// An object's state, written to a LibTorch archive and read from it.
#pragma once

#include <torch/torch.h>

#include <sstream>

namespace lockstep::testing {

/// What `save` writes to an archive, to be read.
template <typename Save>
torch::serialize::InputArchive saved_by(const Save& save) {
  torch::serialize::OutputArchive written;
  save(written);
  std::stringstream bytes;
  written.save_to(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  return archive;
}

/// `save` writes to an archive, which `object` loads.
template <typename Type, typename Save>
void load_from(Type& object, const Save& save) {
  auto archive = saved_by(save);
  object.load(archive);
}

}  // namespace lockstep::testing
