#include "plugin/spank/process/node_tasks.h"

#include <pthread.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "common/leaf/cpu_list.h"
#include "common/leaf/error.h"

namespace lockstep::spank {
namespace {

constexpr std::size_t kMaxListBytes = 2048;     // every second of 1,024 CPUs fits
constexpr std::size_t kMaxPlacesBytes = 16384;  // 1,024 cores with two threads fit

template <std::size_t kBytes>
bool store(std::array<char, kBytes>& into, const std::string& text) {
  if (text.size() >= into.size()) return false;
  std::memcpy(into.data(), text.c_str(), text.size() + 1);
  return true;
}

timespec in_seconds(int seconds) {
  timespec deadline{};
  ::clock_gettime(CLOCK_MONOTONIC, &deadline);
  deadline.tv_sec += seconds;
  return deadline;
}

}  // namespace

struct NodeTasks::Shared {
  pthread_mutex_t record_mutex;  // guards what tasks record in their slots
  pthread_cond_t recorded;
  pthread_mutex_t work_mutex;  // held during the work
  WorkResult result;
  std::uint32_t tasks;
};

struct NodeTasks::Slot {
  bool recorded;
  std::array<char, kMaxListBytes> recorded_cpus, recorded_gpus;
  std::array<char, kMaxListBytes> cpus, workers, numa, gpus;
  std::array<char, kMaxPlacesBytes> places;
  int threads;
};

namespace {

void make_mutex(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

// Locks a robust mutex. `orphaned`: the last owner died while it held the lock.
class MutexGuard {
 public:
  explicit MutexGuard(pthread_mutex_t& mutex) : mutex_(mutex) {
    if (pthread_mutex_lock(&mutex_) == EOWNERDEAD) {
      orphaned_ = true;
      pthread_mutex_consistent(&mutex_);
    }
  }
  ~MutexGuard() { pthread_mutex_unlock(&mutex_); }
  MutexGuard(const MutexGuard&) = delete;
  MutexGuard& operator=(const MutexGuard&) = delete;
  bool orphaned() const { return orphaned_; }

 private:
  pthread_mutex_t& mutex_;
  bool orphaned_ = false;
};

}  // namespace

NodeTasks::NodeTasks(std::uint32_t tasks) : bytes_(sizeof(Shared) + tasks * sizeof(Slot)) {
  void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("cannot get memory for the step's tasks: " + errno_text(errno));
  // The pages are zeroed, which is a valid state of everything but the locks.
  shared_ = static_cast<Shared*>(memory);
  slots_ = reinterpret_cast<Slot*>(shared_ + 1);
  shared_->tasks = tasks;
  make_mutex(shared_->record_mutex);
  make_mutex(shared_->work_mutex);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&shared_->recorded, &attributes);
  pthread_condattr_destroy(&attributes);
}

NodeTasks::~NodeTasks() {
  ::munmap(shared_, bytes_);
}

std::uint32_t NodeTasks::size() const {
  return shared_->tasks;
}

void NodeTasks::record_cpus(std::uint32_t task, const std::vector<int>& cpus) {
  if (task >= shared_->tasks) return;
  const MutexGuard guard(shared_->record_mutex);
  slots_[task].recorded = store(slots_[task].recorded_cpus, format_cpu_list(cpus));
  pthread_cond_broadcast(&shared_->recorded);
}

void NodeTasks::record_gpus(std::uint32_t task, const std::string& gpus) {
  if (task >= shared_->tasks) return;
  const MutexGuard guard(shared_->record_mutex);
  if (!store(slots_[task].recorded_gpus, gpus)) slots_[task].recorded_gpus.front() = '\0';
}

std::vector<std::string> NodeTasks::all_gpus() const {
  const MutexGuard guard(shared_->record_mutex);
  std::vector<std::string> all;
  for (std::uint32_t task = 0; task < shared_->tasks; ++task)
    all.emplace_back(slots_[task].recorded_gpus.data());
  return all;
}

WorkResult NodeTasks::run_once(const std::function<WorkResult()>& work) {
  const MutexGuard guard(shared_->work_mutex);
  if (guard.orphaned() && shared_->result == WorkResult::pending) shared_->result = WorkResult::killed;
  if (shared_->result == WorkResult::pending) shared_->result = work();
  return shared_->result;
}

bool NodeTasks::all_recorded() const {
  for (std::uint32_t task = 0; task < shared_->tasks; ++task) {
    if (!slots_[task].recorded) return false;
  }
  return true;
}

std::vector<int> NodeTasks::wait_for_cpus(int seconds) {
  const timespec deadline = in_seconds(seconds);
  const MutexGuard guard(shared_->record_mutex);
  while (!all_recorded()) {
    const int error = pthread_cond_timedwait(&shared_->recorded, &shared_->record_mutex, &deadline);
    if (error == EOWNERDEAD) pthread_mutex_consistent(&shared_->record_mutex);
    if (error == ETIMEDOUT) return {};
  }
  std::string all;
  for (std::uint32_t task = 0; task < shared_->tasks; ++task) {
    all.append(task == 0 ? "" : ",").append(slots_[task].recorded_cpus.data());
  }
  return parse_cpu_list(all);
}

void NodeTasks::set_placements(const std::vector<TaskPlacement>& placements) {
  for (std::size_t task = 0; task < placements.size() && task < shared_->tasks; ++task) {
    const TaskPlacement& from = placements[task];
    Slot& to = slots_[task];
    to.threads = from.threads;
    if (!store(to.workers, from.workers) || !store(to.numa, from.numa) || !store(to.gpus, from.gpus) ||
        !store(to.places, from.places) || !store(to.cpus, from.cpus)) {
      to.cpus.front() = '\0';
    }
  }
}

TaskPlacement NodeTasks::placement(std::uint32_t task) const {
  if (task >= shared_->tasks) return {};
  const Slot& slot = slots_[task];
  return {slot.cpus.data(), slot.workers.data(), slot.numa.data(),
          slot.gpus.data(), slot.threads,        slot.places.data()};
}

}  // namespace lockstep::spank
