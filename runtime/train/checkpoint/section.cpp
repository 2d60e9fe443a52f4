#include "runtime/train/checkpoint/section.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "common/error.h"

namespace lockstep::checkpoint {
namespace {

const NamedTensor* find(const std::vector<NamedTensor>& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const NamedTensor& tensor) { return tensor.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace

std::string describe(const torch::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check_tensors(const std::vector<NamedTensor>& current, const std::vector<NamedTensor>& saved,
                   const char* noun) {
  for (const NamedTensor& mine : current) {
    const NamedTensor* const other = find(saved, mine.name);
    if (other == nullptr) fail("the checkpoint has no {} '{}'", noun, mine.name);
    if (other->tensor.scalar_type() != mine.tensor.scalar_type() ||
        other->tensor.sizes() != mine.tensor.sizes())
      fail("{} '{}' is {} in the checkpoint, but {} here", noun, mine.name, describe(other->tensor),
           describe(mine.tensor));
  }
  for (const NamedTensor& other : saved) {
    if (find(current, other.name) == nullptr)
      fail("the checkpoint has {} '{}', which does not exist here", noun, other.name);
  }
}

torch::Tensor tensor_in(const Section& section, const std::string& name) {
  const NamedTensor* const found = find(section.tensors, name);
  if (found == nullptr) fail("the checkpoint has no tensor '{}'", name);
  return found->tensor;
}

}  // namespace lockstep::checkpoint
