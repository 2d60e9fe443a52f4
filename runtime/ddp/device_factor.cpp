#include "runtime/ddp/device_factor.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "runtime/ddp/device.h"

namespace lockstep::ddp {
namespace {

// The later work of `stream` waits for the work that `other` has now.
void make_wait(c10::Stream stream, c10::Stream other) {
  if (stream.device_type() == c10::kCPU) return;  // host memory, in a test
  c10::Event reached(other.device_type());
  reached.record(other);
  reached.block(stream);
}

c10::Stream current_stream(torch::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

void DeviceFactor::begin(torch::Device device, std::int64_t count, double expected) {
  const torch::NoGradGuard no_grad;
  const c10::StreamGuard guard(communication_stream(device));
  const auto options = torch::TensorOptions().dtype(torch::kDouble).device(device);
  count_ = torch::full({1}, static_cast<double>(count), options);
  communicator_.all_reduce({count_.data_ptr(), 1, comm::DataType::f64}, "the counts of the step")->wait();
  factor_ = expected / count_.clamp_min(1) * count_.gt(0);
  narrow_ = factor_.to(torch::kFloat);
}

// A product with a double is computed in double, which most devices do many times slower.
const torch::Tensor& DeviceFactor::factor_for(const torch::Tensor& gradients) const {
  return gradients.scalar_type() == torch::kDouble ? factor_ : narrow_;
}

void DeviceFactor::multiply_before_reduction(const torch::Tensor& gradients) const {
  const c10::Stream stream = communication_stream(gradients.device());
  make_wait(stream, current_stream(gradients.device()));
  const c10::StreamGuard guard(stream);
  gradients.mul_(factor_for(
      gradients));  // of one dimension: a factor without dimensions would be rounded to a half type
}

void DeviceFactor::multiply_after_hook(const torch::Tensor& gradients, int ranks) const {
  const c10::Stream stream = current_stream(gradients.device());
  make_wait(stream, communication_stream(gradients.device()));
  const torch::Tensor& factor = factor_for(gradients);
  if (!factor.is_cpu()) factor.record_stream(stream);
  gradients.mul_(factor * ranks);
}

}  // namespace lockstep::ddp
