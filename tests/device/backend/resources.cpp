// Memory, random generators, and the hooks by which LibTorch finds them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "tests/device/backend/backend.h"
#include "tests/device/simulation.h"

namespace lockstep::simulated {
namespace {

constexpr std::size_t kMemory = std::size_t{16} << 30U;  // of a device

// The streams that use a block: the first is that of the allocation.
struct Uses {
  c10::DeviceIndex device = 0;
  std::size_t bytes = 0;
  std::vector<void*> streams;
};

class Blocks {
 public:
  static Blocks& get() {
    static auto* blocks = new Blocks;  // tensors may outlive main
    return *blocks;
  }

  void add(void* memory, Uses uses) {
    const std::scoped_lock lock(mutex_);
    used_ += uses.bytes;
    peak_ = std::max(peak_.load(), used_.load());
    blocks_[memory] = std::move(uses);
  }
  void add_use(const void* memory, void* stream) {
    const std::scoped_lock lock(mutex_);
    const auto found = blocks_.find(memory);
    if (found == blocks_.end()) return;  // not the allocators'
    auto& streams = found->second.streams;
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  }
  Uses remove(const void* memory) {
    const std::scoped_lock lock(mutex_);
    const auto found = blocks_.find(memory);
    Uses uses = std::move(found->second);
    blocks_.erase(found);
    used_ -= uses.bytes;
    return uses;
  }
  bool contains(const void* memory) {
    const std::scoped_lock lock(mutex_);
    auto after = blocks_.upper_bound(memory);
    if (after == blocks_.begin()) return false;
    --after;
    return static_cast<const std::byte*>(memory) <
           static_cast<const std::byte*>(after->first) + after->second.bytes;
  }
  std::size_t used() const { return used_; }
  std::size_t peak() const { return peak_; }
  void reset_peak() {
    const std::scoped_lock lock(mutex_);
    peak_ = used_.load();
  }

 private:
  std::mutex mutex_;
  std::map<const void*, Uses> blocks_;
  std::atomic<std::size_t> used_{0};
  std::atomic<std::size_t> peak_{0};
};

void give_back(void* memory) {
  const Uses uses = Blocks::get().remove(memory);
  const c10::OptionalDeviceGuard guard(c10::Device(kType, uses.device));
  free_in_order(memory, uses.streams.front(), {uses.streams.begin() + 1, uses.streams.end()});
}

// Frees in the order of the stream that allocated, as LibTorch's caching allocator does, which reuses the memory there.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto device = c10::impl::getDeviceGuardImpl(kType)->getDevice();
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    Blocks::get().add(memory, {device.index(), bytes, {native(current_stream(device.index()))}});
    return {memory, memory, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice), "cudaMemcpy");
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& memory, c10::Stream stream) override { record_use(memory, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*device*/) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& all = stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    all.current = static_cast<std::int64_t>(Blocks::get().used());
    all.peak = static_cast<std::int64_t>(Blocks::get().peak());
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex /*device*/) override { Blocks::get().reset_peak(); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex /*device*/) override {
    return {kMemory - Blocks::get().used(), kMemory};
  }
};

// Page-locked memory is given out again when the copies that LibTorch has announced have ended.
class HostMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, c10::kCPU};
    const auto device = c10::impl::getDeviceGuardImpl(kType)->getDevice();
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    static cudaStream_t unused = [] {
      cudaStream_t stream = nullptr;
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      return stream;
    }();
    Blocks::get().add(memory, {device.index(), bytes, {unused}});
    return {memory, memory, &give_back, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool record_event(void* memory, void* /*context*/, c10::Stream stream) override {
    Blocks::get().add_use(memory, native(stream));
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

DeviceMemory device_memory;
HostMemory host_memory;

// A generator of the CPU, on another device.
class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::Device device, at::Generator cpu = at::detail::createCPUGenerator())
      : GeneratorImpl(device, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), cpu_(std::move(cpu)) {}

  at::Generator& cpu() { return cpu_; }

  void set_current_seed(std::uint64_t seed) override { cpu_.set_current_seed(seed); }
  void set_offset(std::uint64_t offset) override { cpu_.set_offset(offset); }
  std::uint64_t get_offset() const override { return cpu_.get_offset(); }
  std::uint64_t current_seed() const override { return cpu_.current_seed(); }
  std::uint64_t seed() override { return cpu_.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  GeneratorImpl* clone_impl() const override { return new Generator(device_, cpu_.clone()); }

  at::Generator cpu_;
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return deviceCount() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return contexts().count(device) > 0; }
  c10::DeviceIndex deviceCount() const override { return guard().deviceCount(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { guard().setDevice({kType, device}); }
  c10::DeviceIndex getCurrentDevice() const override { return guard().getDevice().index(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return guard().exchangeDevice({kType, device}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  bool isPinnedPtr(const void* memory) const override { return Blocks::get().contains(memory); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &host_memory; }
  at::Device getDeviceFromPtr(void* memory) const override {
    return {kType, static_cast<c10::DeviceIndex>(device_of(memory))};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? getCurrentDevice() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(c10::Device(kType, device < 0 ? getCurrentDevice() : device));
  }

 private:
  static const c10::impl::DeviceGuardImplInterface& guard() { return *c10::impl::getDeviceGuardImpl(kType); }
};

const bool resources_registered = [] {
  c10::register_privateuse1_backend("simulated");
  c10::SetAllocator(kType, &device_memory);
  at::setHostAllocator(kType, &host_memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

c10::Allocator* device_allocator() {
  return &device_memory;
}

void record_use(const c10::DataPtr& memory, c10::Stream stream) {
  Blocks::get().add_use(memory.get(), native(stream));
}

at::Generator& cpu_generator_of(const at::Generator& generator) {
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->cpu();
}

at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* const generators = [] {
    auto* made = new std::vector<at::Generator>;
    const auto count = c10::impl::getDeviceGuardImpl(kType)->deviceCount();
    for (c10::DeviceIndex i = 0; i < count; ++i)
      made->push_back(at::make_generator<Generator>(c10::Device(kType, i)));
    return made;
  }();
  return generators->at(static_cast<std::size_t>(device));
}

}  // namespace lockstep::simulated
