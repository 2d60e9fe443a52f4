// Reads a value of a LibTorch archive, and turns an archive into bytes and back.
//
// Threads: those of the archive.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>

#include "common/error.h"

namespace lockstep {

/// Throws Error if the archive does not have it.
inline c10::IValue value_in(torch::serialize::InputArchive& archive, const char* name) {
  c10::IValue value;
  if (!archive.try_read(name, value)) fail("the saved state does not have '{}'", name);
  return value;
}

/// The whole archive, as uint8.
inline torch::Tensor archive_to_bytes(torch::serialize::OutputArchive& archive) {
  std::ostringstream stream;
  archive.save_to(stream);
  const std::string bytes = stream.str();
  auto tensor = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
  std::copy(bytes.begin(), bytes.end(), tensor.data_ptr<std::uint8_t>());
  return tensor;
}

inline torch::serialize::InputArchive archive_from_bytes(const torch::Tensor& bytes) {
  const torch::Tensor in_order = bytes.contiguous();
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(in_order.data_ptr()), in_order.nbytes());
  return archive;
}

}  // namespace lockstep
