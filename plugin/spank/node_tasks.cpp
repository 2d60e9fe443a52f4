#include "plugin/spank/node_tasks.h"

#include <pthread.h>
#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>

#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

constexpr std::size_t kListBytes = 2048;  // longest CPU list kept; a 1,024-CPU worst case fits

bool store(std::array<char, kListBytes>& into, const std::string& text) {
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
  pthread_mutex_t noting;  // guards the slots' masks
  pthread_cond_t noted;
  pthread_mutex_t working;  // held while the work is done; robust, so that a dead worker is noticed
  Ended ended;
  std::uint32_t tasks;
};

struct NodeTasks::Slot {
  bool noted;
  cpu_set_t mask;
  std::array<char, kListBytes> cpus, workers;
  std::array<char, kListBytes> numa, gpus, noted_gpus;
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

// Holds a robust mutex; `orphaned` where the holder before died with it.
class Hold {
 public:
  explicit Hold(pthread_mutex_t& mutex) : mutex_(mutex) {
    if (pthread_mutex_lock(&mutex_) == EOWNERDEAD) {
      orphaned_ = true;
      pthread_mutex_consistent(&mutex_);
    }
  }
  ~Hold() { pthread_mutex_unlock(&mutex_); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  bool orphaned() const { return orphaned_; }

 private:
  pthread_mutex_t& mutex_;
  bool orphaned_ = false;
};

}  // namespace

NodeTasks::NodeTasks(std::uint32_t tasks) : bytes_(sizeof(Shared) + tasks * sizeof(Slot)) {
  void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Refusal("no memory for the step's tasks: " + errno_text(errno));
  // The kernel gives zeroed pages: a valid state for everything but the locks.
  shared_ = static_cast<Shared*>(memory);
  slots_ = reinterpret_cast<Slot*>(shared_ + 1);
  shared_->tasks = tasks;
  make_mutex(shared_->noting);
  make_mutex(shared_->working);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&shared_->noted, &attributes);
  pthread_condattr_destroy(&attributes);
}

NodeTasks::~NodeTasks() {
  ::munmap(shared_, bytes_);
}

std::uint32_t NodeTasks::size() const {
  return shared_->tasks;
}

void NodeTasks::note_cpus(std::uint32_t task, const cpu_set_t& cpus) {
  if (task >= shared_->tasks) return;
  const Hold hold(shared_->noting);
  slots_[task].mask = cpus;
  slots_[task].noted = true;
  pthread_cond_broadcast(&shared_->noted);
}

void NodeTasks::note_gpus(std::uint32_t task, const std::string& gpus) {
  if (task >= shared_->tasks) return;
  const Hold hold(shared_->noting);
  if (!store(slots_[task].noted_gpus, gpus)) slots_[task].noted_gpus.front() = '\0';
}

std::vector<std::string> NodeTasks::all_gpus() const {
  const Hold hold(shared_->noting);
  std::vector<std::string> all;
  for (std::uint32_t task = 0; task < shared_->tasks; ++task)
    all.emplace_back(slots_[task].noted_gpus.data());
  return all;
}

Ended NodeTasks::once(const std::function<Ended()>& work) {
  const Hold hold(shared_->working);
  if (hold.orphaned() && shared_->ended == Ended::pending) shared_->ended = Ended::killed;
  if (shared_->ended == Ended::pending) shared_->ended = work();
  return shared_->ended;
}

bool NodeTasks::all_noted() const {
  for (std::uint32_t task = 0; task < shared_->tasks; ++task) {
    if (!slots_[task].noted) return false;
  }
  return true;
}

std::string NodeTasks::all_cpus(int seconds) {
  const timespec deadline = in_seconds(seconds);
  const Hold hold(shared_->noting);
  while (!all_noted()) {
    const int error = pthread_cond_timedwait(&shared_->noted, &shared_->noting, &deadline);
    if (error == EOWNERDEAD) pthread_mutex_consistent(&shared_->noting);
    if (error == ETIMEDOUT) return "";
  }
  cpu_set_t all;
  CPU_ZERO(&all);
  for (std::uint32_t task = 0; task < shared_->tasks; ++task) CPU_OR(&all, &all, &slots_[task].mask);
  return format_cpus(all);
}

void NodeTasks::put_placements(const std::vector<Placement>& placements) {
  for (std::size_t task = 0; task < placements.size() && task < shared_->tasks; ++task) {
    const Placement& from = placements[task];
    Slot& to = slots_[task];
    to.threads = from.threads;
    if (!store(to.workers, from.workers) || !store(to.numa, from.numa) || !store(to.gpus, from.gpus) ||
        !store(to.cpus, from.cpus)) {
      to.cpus.front() = '\0';
    }
  }
}

Placement NodeTasks::placement(std::uint32_t task) const {
  if (task >= shared_->tasks) return {};
  const Slot& slot = slots_[task];
  return {slot.cpus.data(), slot.workers.data(), slot.numa.data(), slot.gpus.data(), slot.threads};
}

std::string format_cpus(const cpu_set_t& cpus) {
  std::string list;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &cpus)) continue;
    int last = cpu;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &cpus)) ++last;
    if (!list.empty()) list += ',';
    list += std::to_string(cpu);
    if (last > cpu) list += "-" + std::to_string(last);
    cpu = last;
  }
  return list;
}

cpu_set_t parse_cpus(const std::string& list) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  const char* at = list.data();
  const char* const end = at + list.size();
  const auto number = [&] {
    int value = 0;
    const auto [stop, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value < 0 || value >= CPU_SETSIZE)
      throw Refusal("'" + list + "' is no list of CPUs");
    at = stop;
    return value;
  };
  while (at != end) {
    const int first = number();
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      last = number();
    }
    for (int cpu = first; cpu <= last; ++cpu) CPU_SET(cpu, &cpus);
    if (at == end) break;
    if (*at++ != ',' || at == end) throw Refusal("'" + list + "' is no list of CPUs");
  }
  return cpus;
}

}  // namespace lockstep::spank
