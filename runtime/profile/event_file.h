// Writes numbers per step to an event file that TensorBoard reads: TFRecord records of the protobuf message Event
// (tensorflow/core/util/event.proto) with a Summary of simple values.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "common/leaf/unique_fd.h"

namespace lockstep::profile {

using Scalar = std::pair<std::string, double>;

class EventFile {
 public:
  /// Makes events.out.tfevents.… in `folder`, which it makes if needed. Throws Error naming the path.
  explicit EventFile(const std::filesystem::path& folder);

  /// Writes the values of a step. Readers see them at once. Throws Error naming the file.
  void add(std::uint64_t step, std::span<const Scalar> scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write(const std::string& event);

  std::filesystem::path path_;
  UniqueFd fd_;
};

}  // namespace lockstep::profile
