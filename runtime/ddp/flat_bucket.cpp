#include "runtime/ddp/flat_bucket.h"

#include <algorithm>

#include "common/error.h"
#include "runtime/ddp/device.h"

namespace lockstep::ddp {
namespace {

constexpr std::size_t kLine = 64;

torch::ScalarType real_type_of(torch::ScalarType type) {
  if (type == torch::kComplexFloat) return torch::kFloat;
  return type == torch::kComplexDouble ? torch::kDouble : type;
}

std::vector<std::int64_t> strides_of(const torch::Tensor& parameter) {
  const auto like =
      parameter.is_non_overlapping_and_dense() ? parameter.detach() : parameter.detach().contiguous();
  return like.strides().vec();
}

}  // namespace

std::optional<comm::DataType> exchanged_as(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat:
      return comm::DataType::f32;
    case torch::kDouble:
      return comm::DataType::f64;
    case torch::kBFloat16:
      return comm::DataType::bf16;
    case torch::kHalf:
      return comm::DataType::f16;
    case torch::kInt:
      return comm::DataType::i32;
    case torch::kLong:
      return comm::DataType::i64;
    case torch::kByte:
      return comm::DataType::u8;
    default:
      return std::nullopt;
  }
}

comm::DataType data_type_of(torch::ScalarType type, const std::string& what) {
  const auto exchanged = exchanged_as(real_type_of(type));
  if (!exchanged || !c10::isFloatingType(real_type_of(type))) {
    fail_usage(
        "{} has element type {}, whose gradients cannot be reduced; use float, double, bfloat16, half, or a complex type of float or double, or freeze it",
        what, c10::toString(type));
  }
  return *exchanged;
}

std::size_t bytes_in_bucket(const torch::Tensor& parameter) {
  return (parameter.nbytes() + kLine - 1) / kLine * kLine;
}

torch::Tensor device_block(torch::Device device, std::size_t bytes) {
  auto block = torch::zeros({static_cast<std::int64_t>(std::max(bytes, kLine))},
                            torch::TensorOptions(torch::kByte).device(device));
  block.record_stream(communication_stream(device));
  return block;
}

FlatBucket::FlatBucket(comm::Communicator& communicator, std::string label,
                       const std::vector<torch::Tensor>& parameters)
    : label_(std::move(label)) {
  std::size_t bytes = 0;
  for (const auto& parameter : parameters) bytes += bytes_in_bucket(parameter);
  const auto scalar = parameters.at(0).scalar_type();
  const auto type = data_type_of(scalar, label_);
  const std::size_t of_all_ranks = comm::size_of(type) * static_cast<std::size_t>(communicator.size());
  bytes = (bytes + of_all_ranks - 1) / of_all_ranks * of_all_ranks;
  const auto options = torch::TensorOptions().dtype(scalar).device(parameters.at(0).device());
  torch::Tensor block;  // of a device's allocator
  if (options.device().is_cpu()) {
    memory_ = communicator.allocate(bytes);
  } else {
    block = device_block(options.device(), bytes);
    memory_ = std::shared_ptr<void>(block.data_ptr(), [block](void* /*memory*/) {});
  }
  buffer_ = {.data = memory_.get(), .count = bytes / comm::size_of(type), .type = type};

  const auto view_at = [&](std::size_t position, torch::IntArrayRef sizes, torch::IntArrayRef strides,
                           const torch::TensorOptions& type_of_view) {
    if (block.defined()) {
      const std::size_t element = c10::elementSize(c10::typeMetaToScalarType(type_of_view.dtype()));
      return torch::empty({0}, type_of_view)
          .set_(block.storage(), static_cast<std::int64_t>(position / element), sizes, strides);
    }
    const auto keep = [memory = memory_](void* /*view*/) {};
    return torch::from_blob(static_cast<std::byte*>(memory_.get()) + position, sizes, strides, keep,
                            type_of_view);
  };
  tensor_ = view_at(0, {static_cast<std::int64_t>(buffer_.count)}, {1}, options.dtype(real_type_of(scalar)));
  std::size_t position = 0;
  for (const auto& parameter : parameters) {
    views_.push_back(view_at(position, parameter.sizes(), strides_of(parameter), options));
    position += bytes_in_bucket(parameter);
  }
}

}  // namespace lockstep::ddp
