// One rank of bench_allreduce, which starts it (bench_allreduce.py). It measures the all-reduce of a float
// buffer, back to back, through Lockstep's communicator (in its own memory and in any) or through
// MPI_Allreduce; or what bounds both: MPI_Sendrecv of the buffer between two ranks, and the memory bandwidth. Rank 0
// prints a JSON object for each measurement, with the milliseconds of the slowest rank.

#include <mpi.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/tool.h"
#include "common/units.h"
#include "runtime/comm/world.h"

namespace lockstep::bench {
namespace {

struct Plan {
  std::vector<std::string> sizes{"4K", "25M"};
  int blocks = 11;
  double block_milliseconds = 20;
  std::string what = "lockstep";
};

/// The part of an implementation that is measured.
struct Ranks {
  int rank = 0;
  int size = 1;
  std::function<void()> barrier;
  std::function<void(double*)> max;
  std::function<void(float*, std::size_t)> all_reduce;
  std::function<comm::NetworkUse()> network_use = [] {
    return comm::NetworkUse{};
  };  // of the last all-reduce
};

double time_block(const Ranks& ranks, int count, const std::function<void()>& work) {
  ranks.barrier();
  const std::uint64_t begin = monotonic_ns();
  for (int i = 0; i < count; ++i) work();
  double milliseconds = 1e3 * seconds_between(begin, monotonic_ns()) / count;
  ranks.max(&milliseconds);
  return milliseconds;
}

/// Each block's milliseconds per call. All ranks call `work` equally often.
std::vector<double> time_blocks(const Ranks& ranks, const Plan& plan, const std::function<void()>& work) {
  work();
  const double first = time_block(ranks, 2, work);
  const int count = std::clamp(static_cast<int>(plan.block_milliseconds / first), 1, 2000);
  // A slow operation needs no long warm-up, and fewer blocks are enough.
  const int blocks = first > plan.block_milliseconds ? std::max(1, plan.blocks / 2) : plan.blocks;
  std::vector<double> times;
  times.reserve(static_cast<std::size_t>(blocks));
  for (int block = 0; block < blocks; ++block) times.push_back(time_block(ranks, count, work));
  return times;
}

void check_sum(const Ranks& ranks, float* data, std::size_t count) {
  std::fill_n(data, count, static_cast<float>(ranks.rank + 1));
  ranks.all_reduce(data, count);
  const auto expected = static_cast<float>(ranks.size * (ranks.size + 1)) / 2;
  const auto* wrong = std::find_if(data, data + count, [&](float value) { return value != expected; });
  if (wrong != data + count) fail("element {} of {} is {}, not {}", wrong - data, count, *wrong, expected);
  std::fill_n(data, count, 0.0F);  // so that repeated sums stay finite
}

void print(const Ranks& ranks, const nlohmann::json& line) {
  if (ranks.rank == 0) Tool::print(line);
}

void measure(const Ranks& ranks, const Plan& plan, bool registered, std::size_t bytes, float* data) {
  const std::size_t count = bytes / sizeof(float);
  if (plan.what != "sendrecv") check_sum(ranks, data, count);
  const auto times = time_blocks(ranks, plan, [&] { ranks.all_reduce(data, count); });
  nlohmann::json line{{"registered", registered}, {"bytes", bytes}, {"blocks", times}};
  ranks.all_reduce(data, count);
  const comm::NetworkUse use = ranks.network_use();
  if (use.rounds > 0) line.update({{"rounds", use.rounds}, {"peers", use.peers}});
  print(ranks, line);
}

std::vector<std::size_t> sizes_of(const Plan& plan) {
  std::vector<std::size_t> sizes;
  for (const auto& text : plan.sizes) {
    const auto bytes = parse_bytes(text);
    if (bytes == 0 || bytes % sizeof(float) != 0)
      fail_usage("--sizes: {} is not a multiple of 4 bytes", text);
    sizes.push_back(bytes);
  }
  return sizes;
}

void measure_lockstep(int argc, char** argv, const Plan& plan) {
  World world(argc, argv);
  auto& communicator = world.communicator();
  const Ranks ranks{.rank = world.rank(),
                    .size = world.size(),
                    .barrier = [&] { communicator.barrier("before a block")->wait(); },
                    .max =
                        [&](double* value) {
                          communicator
                              .all_reduce({value, 1, comm::DataType::f64}, "a block's time",
                                          {.op = comm::ReduceOp::max})
                              ->wait();
                        },
                    .all_reduce =
                        [&](float* data, std::size_t count) {
                          communicator.all_reduce({data, count, comm::DataType::f32}, "the buffer")->wait();
                        },
                    .network_use = [&] { return communicator.network_use(); }};
  for (const std::size_t bytes : sizes_of(plan)) {
    {
      const auto memory = communicator.allocate(bytes);
      measure(ranks, plan, true, bytes, static_cast<float*>(memory.get()));
    }
    std::vector<float> memory(bytes / sizeof(float));
    measure(ranks, plan, false, bytes, memory.data());
  }
}

/// MPI, initialised as by a program with one thread.
class Mpi {
 public:
  Mpi(int& argc, char**& argv) { MPI_Init(&argc, &argv); }
  ~Mpi() { MPI_Finalize(); }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  static Ranks ranks() {
    Ranks ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &ranks.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks.size);
    ranks.barrier = [] { MPI_Barrier(MPI_COMM_WORLD); };
    ranks.max = [](double* value) {
      MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    };
    ranks.all_reduce = [](float* data, std::size_t count) {
      MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    };
    return ranks;
  }
};

void measure_mpi(int argc, char** argv, const Plan& plan) {
  const Mpi mpi(argc, argv);
  Ranks ranks = Mpi::ranks();
  std::vector<float> received;
  if (plan.what == "sendrecv") {
    if (ranks.size != 2) fail_usage("--measure sendrecv needs two ranks, not {}", ranks.size);
    ranks.all_reduce = [&, other = 1 - ranks.rank](float* data, std::size_t count) {
      received.resize(count);
      MPI_Sendrecv(data, static_cast<int>(count), MPI_FLOAT, other, 0, received.data(),
                   static_cast<int>(count), MPI_FLOAT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    };
  }
  for (const std::size_t bytes : sizes_of(plan)) {
    std::vector<float> memory(bytes / sizeof(float));
    measure(ranks, plan, false, bytes, memory.data());
  }
}

/// Measures all ranks at once, in memory much larger than the caches. `update` reads and writes the same
/// lines, as reducing in place does; `triad` is STREAM's, with STREAM's way of counting bytes.
void measure_bandwidth(int argc, char** argv, const Plan& plan) {
  const Mpi mpi(argc, argv);
  const Ranks ranks = Mpi::ranks();
  constexpr std::size_t kCount = std::size_t{32} << 20;
  std::vector<float> a(kCount, 1);
  const std::vector<float> b(kCount, 2);
  const std::vector<float> c(kCount, 3);
  const auto report = [&](const char* kernel, double bytes, const std::function<void()>& work) {
    std::vector<double> rates;
    for (const double milliseconds : time_blocks(ranks, plan, work)) {
      rates.push_back(bytes * ranks.size / milliseconds * 1e3);
    }
    print(ranks, {{"kernel", kernel}, {"blocks", rates}});
  };
  report("update", 2.0 * sizeof(float) * kCount, [&] {
    for (float& value : a) value *= 1.0000001F;
  });
  report("triad", 3.0 * sizeof(float) * kCount, [&] {
    for (std::size_t i = 0; i < kCount; ++i) a[i] = b[i] + 0.5F * c[i];
  });
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::Tool tool("bench_allreduce_rank", "One rank of bench_allreduce.");
  lockstep::bench::Plan plan;
  tool.app()
      .add_option("--measure", plan.what)
      ->check(CLI::IsMember({"lockstep", "mpi", "sendrecv", "bandwidth"}));
  tool.app().add_option("--sizes", plan.sizes, "As 4K,25M")->delimiter(',');
  tool.app().add_option("--blocks", plan.blocks)->check(CLI::PositiveNumber);
  tool.app().add_option("--block-milliseconds", plan.block_milliseconds)->check(CLI::PositiveNumber);
  return tool.run(argc, argv, [&] {
    if (plan.what == "lockstep") lockstep::bench::measure_lockstep(argc, argv, plan);
    if (plan.what == "mpi" || plan.what == "sendrecv") lockstep::bench::measure_mpi(argc, argv, plan);
    if (plan.what == "bandwidth") lockstep::bench::measure_bandwidth(argc, argv, plan);
  });
}
