// Operators: memory, views and copies are the device's own, everything else is computed by the CPU's kernels on the same
// memory, in the order of the current stream.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/device/backend/backend.h"
#include "tests/device/simulation.h"

namespace lockstep::simulated {
namespace {

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

// From the first to the last element.
Access access_to(const at::Tensor& tensor, bool write) {
  if (tensor.numel() == 0) return {};
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {tensor.const_data_ptr(), (static_cast<std::size_t>(last) + 1) * tensor.itemsize(), write};
}

// A tensor of the CPU on the same memory.
at::Tensor host_view(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  void* const memory = storage.nbytes() == 0 ? nullptr : reachable(storage.data());
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(memory, c10::kCPU),
                   c10::GetAllocator(c10::kCPU), true),
      c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* const impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return view;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                 std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                         std::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, device_allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat> /*format*/) {
  const c10::OptionalDeviceGuard guard(self.device());
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  c10::Storage storage = impl->storage();
  const std::size_t bytes =
      (static_cast<std::size_t>(self.numel()) + static_cast<std::size_t>(self.storage_offset())) *
      self.itemsize();
  if (bytes <= storage.nbytes()) return self;
  c10::DataPtr memory = device_allocator()->allocate(bytes);
  if (storage.nbytes() > 0) device_allocator()->copy_data(memory.get(), storage.data(), storage.nbytes());
  storage.set_data_ptr_noswap(std::move(memory));
  storage.set_nbytes(bytes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(sizes, strides);
  return self;
}

bool same_layout(const at::Tensor& from, const at::Tensor& to) {
  return from.dtype() == to.dtype() && from.is_non_overlapping_and_dense() &&
         from.strides() == to.strides() && from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg();
}

// Both have the same layout, and one is on the device.
void copy_bytes(const at::Tensor& from, const at::Tensor& to, c10::Stream stream, bool non_blocking) {
  const auto handle = static_cast<cudaStream_t>(native(stream));
  check(
      cudaMemcpyAsync(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes(), cudaMemcpyDefault, handle),
      "cudaMemcpyAsync");
  for (const at::Tensor& tensor : {from, to}) {
    // So that page-locked memory is not given out again before the copy has ended.
    if (tensor.is_cpu())
      at::getHostAllocator(kType)->record_event(tensor.storage().mutable_data(), nullptr, stream);
  }
  if (!non_blocking) check(cudaStreamSynchronize(handle), "cudaStreamSynchronize");
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::Tensor source = from.sizes() == to.sizes() ? from : from.expand(to.sizes());
  if (to.numel() == 0) return to;
  const c10::Device device = on_device(to) ? to.device() : from.device();
  const c10::OptionalDeviceGuard guard(device);
  const c10::Stream stream = current_stream(device.index());
  if (on_device(from) && on_device(to)) {
    TORCH_CHECK(from.device() == to.device(), "copies between simulated devices do not exist");
    const Kernel kernel(native(stream), "aten::copy_", {access_to(from, false), access_to(to, true)});
    host_view(to).copy_(host_view(source));
  } else if (same_layout(source, to)) {
    copy_bytes(source, to, stream, non_blocking);
  } else if (on_device(to)) {
    const at::Tensor packed = source.to(to.scalar_type()).contiguous();
    const at::Tensor staged = at::empty_strided(to.sizes(), packed.strides(), to.options());
    copy_bytes(packed, staged, stream, non_blocking);
    copy_from(staged, to, true);
  } else {
    const at::Tensor packed = source.contiguous();
    const at::Tensor staged =
        at::empty_strided(packed.sizes(), packed.strides(), packed.options().device(c10::kCPU));
    copy_bytes(packed, staged, stream, false);
    to.copy_(staged);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar read_number(const at::Tensor& self) {
  const at::Tensor host = at::empty_strided(self.sizes(), self.strides(), self.options().device(c10::kCPU));
  copy_from(self, host, false);
  return host.item();
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  record_use(self.storage().data_ptr(), stream);
}

std::int64_t choose_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;  // by matrix products
}

// So that Module::to() can move a parameter to the device and back.
bool may_take_data(const at::Tensor& self, const at::Tensor& from) {
  return self.layout() == from.layout();
}

// Arguments that operators write, although their schemas do not say so.
const std::map<std::string, std::set<std::size_t>> kHiddenWrites = {{"aten::native_batch_norm", {3, 4}}};

// The CPU's default generator stands for the device's while an operator draws numbers.
class Drawing {
 public:
  Drawing(c10::DeviceIndex device, bool draws) {
    if (!draws) return;
    device_ = cpu_generator_of(default_generator(device));
    before_ = exchange(device_.get_state());
  }
  ~Drawing() {
    if (device_.defined()) device_.set_state(exchange(before_));
  }
  Drawing(const Drawing&) = delete;
  Drawing& operator=(const Drawing&) = delete;

 private:
  static at::Tensor exchange(const at::Tensor& state) {
    at::Generator cpu = at::detail::getDefaultCPUGenerator();
    const std::scoped_lock lock(cpu.mutex());
    at::Tensor before = cpu.get_state();
    cpu.set_state(state);
    return before;
  }

  at::Generator device_;
  at::Tensor before_;
};

class Call {
 public:
  explicit Call(const c10::OperatorHandle& op, torch::jit::Stack& stack) : op_(op), stack_(stack) {
    const auto& arguments = op.schema().arguments();
    const std::size_t first = stack.size() - arguments.size();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      const auto hidden = kHiddenWrites.find(op.schema().name());
      const bool writes = (alias != nullptr && alias->isWrite()) ||
                          (hidden != kHiddenWrites.end() && hidden->second.count(i) > 0);
      take(stack[first + i], writes);
    }
    TORCH_CHECK(device_, op.schema().name(), " is not implemented for the simulated device");
  }

  void run() {
    const c10::OptionalDeviceGuard guard(*device_);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    void* const stream = native(current_stream(device_->index()));
    bool host_reads = false;
    {
      Kernel kernel(stream, op_.schema().name().c_str(), accesses_);
      const Drawing drawing(device_->index(), op_.hasTag(at::Tag::nondeterministic_seeded));
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
      for (const Alias& alias : aliases_) take_new_shape(kernel, alias);
      for (std::size_t i = stack_.size() - op_.schema().returns().size(); i < stack_.size(); ++i) {
        host_reads = host_reads || !(stack_[i].isTensor() || stack_[i].isTensorList());
        give(kernel, stack_[i]);
      }
    }
    if (host_reads) check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
  }

 private:
  struct Alias {
    at::Tensor device;
    at::Tensor host;
    bool writes;
  };

  at::Tensor take(const at::Tensor& tensor, bool writes) {
    if (!on_device(tensor)) return tensor;
    device_ = tensor.device();
    accesses_.push_back(access_to(tensor, writes));
    aliases_.push_back({tensor, host_view(tensor), writes});
    return aliases_.back().host;
  }

  void take(c10::IValue& value, bool writes) {
    if (value.isTensor()) {
      value = take(value.toTensor(), writes);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(take(tensor, writes));
      value = tensors;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const auto& tensor : value.toOptionalTensorVector())
        tensors.push_back(tensor ? std::optional(take(*tensor, writes)) : std::nullopt);
      value = tensors;
    } else if (value.isDevice()) {
      if (value.toDevice().type() == kType) {
        device_ = value.toDevice();
        value = c10::Device(c10::kCPU);
      }
    } else if (value.isGenerator()) {
      if (value.toGenerator().device().type() == kType) value = cpu_generator_of(value.toGenerator());
    }
  }

  // After an operator that has resized its result.
  static void take_new_shape(Kernel& kernel, const Alias& alias) {
    if (!alias.writes || alias.host.sizes() == alias.device.sizes()) return;
    alias.device.resize_(alias.host.sizes());
    host_view(alias.device).copy_(alias.host);
    kernel.also_uses(access_to(alias.device, true));
  }

  at::Tensor give(Kernel& kernel, const at::Tensor& host) {
    if (!host.defined() || !host.is_cpu()) return host;
    for (const Alias& alias : aliases_) {
      if (host.is_same(alias.host)) return alias.device;
      if (host.storage().is_alias_of(alias.host.storage()))
        return at::native::as_strided_tensorimpl(alias.device, host.sizes(), host.strides(),
                                                 host.storage_offset());
    }
    const at::Tensor dense = host.is_non_overlapping_and_dense() ? host : host.contiguous();
    const at::Tensor result =
        at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(*device_));
    if (dense.numel() == 0) return result;
    std::memcpy(reachable(result.mutable_data_ptr()), dense.const_data_ptr(), dense.nbytes());
    kernel.also_uses(access_to(result, true));
    return result;
  }

  void give(Kernel& kernel, c10::IValue& value) {
    if (value.isTensor()) {
      value = give(kernel, value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(give(kernel, tensor));
      value = tensors;
    }
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  std::optional<c10::Device> device_;
  std::vector<Alias> aliases_;
  std::vector<Access> accesses_;
};

}  // namespace

void compute_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  Call(op, *stack).run();
}

namespace {

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

// Autocast of the operators that the tests use.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m){
    KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp) KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
        KERNEL_PRIVATEUSEONE(linear, lower_precision_fp) KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
            KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &as_strided);
  library.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &read_number);
  library.impl("record_stream", &record_stream);
  library.impl("_fused_sdp_choice", &choose_attention);
  library.impl("_has_compatible_shallow_copy_type", &may_take_data);
}

}  // namespace
}  // namespace lockstep::simulated
