// Finds the tensors in the result of a module's forward: tensors, and vectors, arrays, tuples, pairs, maps (also c10::List
// and c10::Dict) and optionals of them, to any depth. For a type of your own, write a specialisation:
//
//   template <>
//   struct lockstep::OutputTensors<Detections> {
//     static constexpr bool known = true;
//     static void collect(const Detections& output, std::vector<torch::Tensor>& tensors) {
//       tensors.push_back(output.boxes);
//       tensors.push_back(output.scores);
//     }
//   };
//
// DistributedDataParallel also works without it, but then find_unused_parameters cannot be used with that
// type, and with reentrant checkpointing you must call ddp.backward() instead of loss.backward().
//
// Threads: functions without state; may be called from any thread.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

template <typename Output, typename = void>
struct OutputTensors {
  static constexpr bool known = false;
  static void collect(const Output& /*output*/, std::vector<torch::Tensor>& /*tensors*/) {}
};

template <>
struct OutputTensors<torch::Tensor> {
  static constexpr bool known = true;
  static void collect(const torch::Tensor& output, std::vector<torch::Tensor>& tensors) {
    if (output.defined()) tensors.push_back(output);
  }
};

/// Numbers, enumerations and strings contain no tensors.
template <typename Output>
struct OutputTensors<Output, std::enable_if_t<std::is_arithmetic_v<Output> || std::is_enum_v<Output> ||
                                              std::is_convertible_v<Output, std::string_view>>> {
  static constexpr bool known = true;
  static void collect(const Output& /*output*/, std::vector<torch::Tensor>& /*tensors*/) {}
};

template <typename... Parts>
struct OutputTensors<std::tuple<Parts...>> {
  static constexpr bool known = (OutputTensors<std::decay_t<Parts>>::known && ...);
  static void collect(const std::tuple<Parts...>& output, std::vector<torch::Tensor>& tensors) {
    std::apply(
        [&](const auto&... parts) {
          (OutputTensors<std::decay_t<decltype(parts)>>::collect(parts, tensors), ...);
        },
        output);
  }
};

template <typename First, typename Second>
struct OutputTensors<std::pair<First, Second>> {
  static constexpr bool known =
      OutputTensors<std::decay_t<First>>::known && OutputTensors<std::decay_t<Second>>::known;
  static void collect(const std::pair<First, Second>& output, std::vector<torch::Tensor>& tensors) {
    OutputTensors<std::decay_t<First>>::collect(output.first, tensors);
    OutputTensors<std::decay_t<Second>>::collect(output.second, tensors);
  }
};

template <typename Part>
struct OutputTensors<std::optional<Part>> {
  static constexpr bool known = OutputTensors<Part>::known;
  static void collect(const std::optional<Part>& output, std::vector<torch::Tensor>& tensors) {
    if (output) OutputTensors<Part>::collect(*output, tensors);
  }
};

/// Vectors, arrays, lists, maps (whose elements are pairs), torch::OrderedDict.
template <typename Output>
struct OutputTensors<Output, std::enable_if_t<std::ranges::input_range<const Output> &&
                                              !std::is_convertible_v<Output, std::string_view>>> {
  using Part = std::ranges::range_value_t<const Output>;  // the elements of c10::List are proxies
  static constexpr bool known = OutputTensors<Part>::known;
  static void collect(const Output& output, std::vector<torch::Tensor>& tensors) {
    for (const auto& part : output) OutputTensors<Part>::collect(part, tensors);
  }
};

template <typename Key, typename Value>
struct OutputTensors<torch::OrderedDict<Key, Value>> {
  static constexpr bool known = OutputTensors<Value>::known;
  static void collect(const torch::OrderedDict<Key, Value>& output, std::vector<torch::Tensor>& tensors) {
    for (const auto& item : output) OutputTensors<Value>::collect(item.value(), tensors);
  }
};

template <typename Key, typename Value>
struct OutputTensors<c10::Dict<Key, Value>> {
  static constexpr bool known = OutputTensors<Value>::known;
  static void collect(const c10::Dict<Key, Value>& output, std::vector<torch::Tensor>& tensors) {
    for (const auto& item : output) OutputTensors<Value>::collect(item.value(), tensors);
  }
};

}  // namespace lockstep
