#include "tests/cluster/embedded/metered_fs/meter.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <thread>
#include <utility>

#include "common/error.h"
#include "common/files.h"

namespace lockstep::metered_fs {
namespace {

constexpr std::uint64_t kMagic = 0x3172657465'6d736cULL;
constexpr std::size_t kMachines = 128;
constexpr std::size_t kNameSize = 32;
constexpr std::uint64_t kSecond = 1'000'000'000;

static_assert(Counter::is_always_lock_free, "counters are shared between processes");

// The fields of Counters by their names in JSON.
constexpr std::array<std::pair<const char*, Counter Counters::*>, 8> kFields{
    {{"bytes_read", &Counters::bytes_read},
     {"bytes_written", &Counters::bytes_written},
     {"reads", &Counters::reads},
     {"writes", &Counters::writes},
     {"opens", &Counters::opens},
     {"lookups", &Counters::lookups},
     {"getattrs", &Counters::getattrs},
     {"others", &Counters::others}}};

std::uint64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);  // one clock for all machines of the cluster
  return static_cast<std::uint64_t>(time.tv_sec) * kSecond + static_cast<std::uint64_t>(time.tv_nsec);
}

void sleep_until(std::uint64_t nanoseconds) {
  const timespec time{static_cast<time_t>(nanoseconds / kSecond), static_cast<long>(nanoseconds % kSecond)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
  }
}

}  // namespace

struct Meter::Layout {
  struct Machine {
    char name[kNameSize];
    Counters counters;
  };
  std::uint64_t magic;
  Counter bandwidth;  // bytes per second, 0: no limit
  Counter latency;    // nanoseconds per operation
  Counter pipe_free;  // time at which all transfers so far are done
  Machine machines[kMachines];
};

void Meter::create(const std::filesystem::path& file) {
  const UniqueFd fd = open_file(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (ftruncate(fd.get(), sizeof(Layout)) != 0) fail_errno("cannot make {}", file.string());
  write_all(fd.get(), std::string_view(reinterpret_cast<const char*>(&kMagic), sizeof(kMagic)), file);
}

Meter::Meter(const std::filesystem::path& file) {
  const UniqueFd fd = open_file(file, O_RDWR);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) fail_errno("cannot stat {}", file.string());
  if (status.st_size != sizeof(Layout))
    fail("{} is not a meter's file; make one with --create", file.string());
  void* address = mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) fail_errno("cannot map {}", file.string());
  layout_ = static_cast<Layout*>(address);
  if (layout_->magic != kMagic) {
    munmap(address, sizeof(Layout));
    fail("{} is not a meter's file; make one with --create", file.string());
  }
}

Meter::~Meter() {
  munmap(layout_, sizeof(Layout));
}

Counters& Meter::machine(const std::string& name) {
  if (name.empty() || name.size() >= kNameSize)
    fail_usage("machine name '{}': 1 to {} letters", name, kNameSize - 1);
  // Machines that start at once get different places: the first letter is an atomic claim.
  for (Layout::Machine& place : layout_->machines) {
    std::atomic_ref<char> claim(place.name[0]);
    char free = 0;
    if (claim.compare_exchange_strong(free, '?')) {
      std::memcpy(place.name + 1, name.c_str() + 1, name.size());
      claim = name[0];
      return place.counters;
    }
    while (claim == '?') std::this_thread::yield();
    if (name == place.name) return place.counters;
  }
  fail("no space for machine {}: a meter counts at most {} machines", name, kMachines);
}

void Meter::set_bandwidth(std::uint64_t bytes_per_second) {
  layout_->bandwidth = bytes_per_second;
  layout_->pipe_free = 0;
}

void Meter::set_latency(double seconds) {
  layout_->latency = static_cast<std::uint64_t>(seconds * static_cast<double>(kSecond));
}

void Meter::reset() {
  for (Layout::Machine& machine : layout_->machines) {
    for (const auto& [name, field] : kFields) machine.counters.*field = 0;
  }
}

nlohmann::json Meter::to_json() const {
  nlohmann::json machines = nlohmann::json::object();
  nlohmann::json total;
  for (const auto& [name, field] : kFields) total[name] = 0;
  for (const Layout::Machine& machine : layout_->machines) {
    if (machine.name[0] == 0) break;
    nlohmann::json& counters = machines[machine.name];
    for (const auto& [name, field] : kFields) {
      const std::uint64_t value = machine.counters.*field;
      counters[name] = value;
      total[name] = total[name].get<std::uint64_t>() + value;
    }
  }
  return {{"bandwidth", layout_->bandwidth.load()},
          {"latency_ms", static_cast<double>(layout_->latency.load()) / 1e6},
          {"machines", std::move(machines)},
          {"total", std::move(total)}};
}

void Meter::operation(Counter& counter) {
  counter.fetch_add(1, std::memory_order_relaxed);
  if (const std::uint64_t latency = layout_->latency; latency != 0) sleep_until(now() + latency);
}

void Meter::transfer(std::uint64_t bytes) {
  const std::uint64_t bandwidth = layout_->bandwidth;
  if (bandwidth == 0 || bytes == 0) return;
  // Transfers run one after the other.
  const auto duration = static_cast<std::uint64_t>(
      static_cast<double>(bytes) / static_cast<double>(bandwidth) * static_cast<double>(kSecond));
  std::uint64_t free_at = layout_->pipe_free;
  std::uint64_t end = 0;
  do {
    end = std::max(free_at, now()) + duration;
  } while (!layout_->pipe_free.compare_exchange_weak(free_at, end));
  sleep_until(end);
}

}  // namespace lockstep::metered_fs
