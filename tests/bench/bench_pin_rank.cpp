// A rank of bench_pin: threads that compute and stream through memory, loader threads that copy beside them, and steps that
// end when the slowest rank has ended its own. It links no LibTorch, so that it measures the machine and the binding alone.
//
// The bandwidth is that of the triad a = b + s c (McCalpin, STREAM), counted as three arrays.

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "common/statistics.h"
#include "common/tool.h"

namespace lockstep {
namespace {

struct Options {
  int ranks = 1;
  int threads = 1;
  int loaders = 0;
  int steps = 50;
  std::size_t elements = std::size_t{4} << 20;  // of each of a thread's arrays
  std::string barrier;  // a file of the size of a pthread_barrier_t that all ranks map
};

// Meets the other ranks. The first to come initialises the barrier, which the file's lock protects.
class RankBarrier {
 public:
  RankBarrier(const std::string& file, int ranks) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::lockf(fd, F_LOCK, 0) != 0) fail_errno("cannot open {}", file);
    const bool first = ::lseek(fd, 0, SEEK_END) == 0;
    if (first && ::ftruncate(fd, sizeof(pthread_barrier_t)) != 0) fail_errno("cannot write {}", file);
    void* const at = ::mmap(nullptr, sizeof(pthread_barrier_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) fail_errno("cannot map {}", file);
    barrier_ = static_cast<pthread_barrier_t*>(at);
    if (first) {
      pthread_barrierattr_t shared;
      pthread_barrierattr_init(&shared);
      pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
      pthread_barrier_init(barrier_, &shared, static_cast<unsigned>(ranks));
    }
    ::close(fd);  // releases the lock
  }
  void wait() { pthread_barrier_wait(barrier_); }

 private:
  pthread_barrier_t* barrier_;
};

void bind_to(const char* variable) {
  const std::vector<int> cpus = parse_cpu_list(environment::get(variable).value_or(""));
  if (!cpus.empty()) bind_this_thread(cpus);
}

// One compute thread's arrays, which it touches first, so that they are on its NUMA node.
class Work {
 public:
  explicit Work(std::size_t elements)
      : a_(elements, 0), b_(elements, 1), c_(elements, 2), square_(kSide * kSide, 0.5F) {}

  void triad() {
    for (std::size_t i = 0; i < a_.size(); ++i) a_[i] = b_[i] + 3 * c_[i];
    __asm__ volatile("" ::"r"(a_.data()) : "memory");
  }

  void multiply() {
    std::vector<float> product(kSide * kSide, 0);
    for (std::size_t i = 0; i < kSide; ++i) {
      for (std::size_t k = 0; k < kSide; ++k) {
        const float left = square_[i * kSide + k];
        for (std::size_t j = 0; j < kSide; ++j) product[i * kSide + j] += left * square_[k * kSide + j];
      }
    }
    __asm__ volatile("" ::"r"(product.data()) : "memory");
  }

 private:
  static constexpr std::size_t kSide = 256;
  std::vector<double> a_, b_, c_;
  std::vector<float> square_;
};

// Copies memory, as a loader copies samples into batches.
void load(const std::atomic<bool>& stop) {
  bind_to("LOCKSTEP_WORKER_CPUS");
  constexpr std::size_t kBlock = std::size_t{8} << 20;
  const std::vector<char> from(kBlock, 1);
  std::vector<char> to(kBlock);
  while (!stop.load(std::memory_order_relaxed)) {
    std::memcpy(to.data(), from.data(), kBlock);
    __asm__ volatile("" ::"r"(to.data()) : "memory");
  }
}

void run(const Options& options) {
  RankBarrier ranks(options.barrier, options.ranks);
  std::atomic<bool> stop{false};
  std::vector<std::thread> loaders;
  for (int i = 0; i < options.loaders; ++i) loaders.emplace_back(load, std::cref(stop));

  std::vector<std::uint64_t> ends;
  std::barrier phase(options.threads, [&]() noexcept {
    ranks.wait();
    ends.push_back(monotonic_ns());
  });
  const auto compute = [&] {
    bind_to("LOCKSTEP_CPUS");
    Work work(options.elements);
    work.triad();
    phase.arrive_and_wait();
    for (int step = 0; step < options.steps; ++step) {
      work.triad();
      phase.arrive_and_wait();
      work.multiply();
      work.triad();
      phase.arrive_and_wait();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < options.threads; ++i) threads.emplace_back(compute);
  for (std::thread& thread : threads) thread.join();
  stop = true;
  for (std::thread& thread : loaders) thread.join();

  std::vector<double> triads;
  std::vector<double> steps;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    (i % 2 == 1 ? triads : steps).push_back(seconds_between(ends[i - 1], ends[i]));
  }
  const double bytes = 3.0 * sizeof(double) * static_cast<double>(options.elements) * options.threads;
  Tool::print({{"bytes_per_second", bytes / median(triads)}, {"step_milliseconds", 1e3 * median(steps)}});
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  Options options;
  Tool tool("bench_pin_rank", "One rank of bench_pin, which starts it.");
  tool.app().add_option("--ranks", options.ranks, "Ranks that run together");
  tool.app().add_option("--threads", options.threads, "Compute threads");
  tool.app().add_option("--loaders", options.loaders, "Loader threads");
  tool.app().add_option("--steps", options.steps, "Steps");
  tool.app().add_option("--elements", options.elements, "Numbers in each array of a thread");
  tool.app().add_option("--barrier", options.barrier, "File that the ranks share")->required();
  return tool.run(argc, argv, [&] { run(options); });
}
