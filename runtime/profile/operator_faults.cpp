#include "runtime/profile/operator_faults.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace lockstep::profile {
namespace {

// Operations whose result's value or shape the host must know. Operations that call these are found through them.
constexpr std::array<std::string_view, 9> kWaiting = {"aten::_local_scalar_dense",
                                                      "aten::nonzero",
                                                      "aten::equal",
                                                      "aten::_unique",
                                                      "aten::_unique2",
                                                      "aten::unique_dim",
                                                      "aten::bincount",
                                                      "aten::unique_consecutive",
                                                      "aten::masked_select"};

constexpr std::array<std::string_view, 6> kSums = {"aten::sum",    "aten::mean", "aten::prod",
                                                   "aten::cumsum", "aten::norm", "aten::var"};
constexpr std::int64_t kSummands = 256;

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

at::Tensor tensor_at(Values values, std::size_t at) {
  return at < values.size() && values[at].isTensor() ? values[at].toTensor() : at::Tensor();
}

bool is_on(const at::Tensor& tensor, c10::DeviceType type) {
  return tensor.defined() && tensor.device().type() == type;
}

}  // namespace

bool waits_for_device(std::string_view operation, Values inputs, c10::DeviceType type) {
  if (operation == "aten::copy_") {  // (into, from, non_blocking)
    if (inputs.size() < 3 || (inputs[2].isBool() && inputs[2].toBool())) return false;
    return type != c10::DeviceType::CPU &&
           is_on(tensor_at(inputs, 0), type) != is_on(tensor_at(inputs, 1), type);
  }
  if (!contains(kWaiting, operation)) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (is_on(tensor_at(inputs, i), type)) return true;
  }
  return false;
}

std::uint64_t bytes_to_device(std::string_view operation, Values inputs) {
  if (operation != "aten::copy_" || inputs.size() < 2) return 0;
  const at::Tensor into = tensor_at(inputs, 0);
  const at::Tensor from = tensor_at(inputs, 1);
  if (!into.defined() || is_on(into, c10::DeviceType::CPU) || !is_on(from, c10::DeviceType::CPU)) return 0;
  return static_cast<std::uint64_t>(from.numel()) * from.element_size();
}

bool ConvolutionShapes::is_new(std::string_view operation, Values inputs) {
  if (operation != "aten::convolution") return false;
  const at::Tensor input = tensor_at(inputs, 0);
  const at::Tensor weight = tensor_at(inputs, 1);
  if (!input.defined() || !weight.defined()) return false;
  const std::lock_guard lock(mutex_);
  auto& shapes = seen_[weight.unsafeGetTensorImpl()];
  return shapes.insert(input.sizes().vec()).second && shapes.size() > 1;
}

std::optional<std::string> half_sum(std::string_view operation, Values inputs, Values results) {
  if (!contains(kSums, operation)) return std::nullopt;
  const at::Tensor input = tensor_at(inputs, 0);
  const at::Tensor result = tensor_at(results, 0);
  if (!input.defined() || !result.defined() || result.numel() == 0) return std::nullopt;
  const auto type = result.scalar_type();
  const std::int64_t summands = input.numel() / result.numel();
  if ((type != at::kHalf && type != at::kBFloat16) || summands < kSummands) return std::nullopt;
  return fmt::format("{} of {} values in {}", operation, summands, c10::toString(type));
}

}  // namespace lockstep::profile
