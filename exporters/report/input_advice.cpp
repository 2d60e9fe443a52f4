#include "exporters/report/input_advice.h"

#include <fmt/format.h>

#include <string>

#include "common/units.h"

namespace lockstep::report {
namespace {

using record::Resources;
using record::Snapshot;

constexpr double kWithoutCpu = 0.25;         // of the time in which the loader's threads build batches
constexpr double kLoaderCpu = 0.10;          // of the processor time: what its threads take from computing
constexpr double kSmallRead = 16 << 10;      // bytes; a disk or a network takes about as long for more
constexpr double kManyReads = 200;           // per second and rank
constexpr double kReadTwice = 1.5;           // bytes from storage for each byte of a sample
constexpr double kOtherReads = 1ULL << 30U;  // by each rank: LibTorch's libraries, checkpoints

struct InputSums {
  double build = 0;    // ns
  double delay = 0;    // ns, part of it
  double cpu = 0;      // ns, processor time of all threads
  double loader = 0;   // ns, part of it: the loader's threads
  double reads = 0;    // calls
  double read = 0;     // bytes they returned
  double seconds = 0;  // of all ranks
  double storage = 0;  // bytes
  double samples = 0;  // bytes that the loader read
  double ranks = 0;
};

InputSums sums_of(const Run& run) {
  InputSums sums;
  for (const Snapshot& rank : run.ranks) {
    if (!rank.resources) continue;
    const Resources& used = *rank.resources;
    sums.build += static_cast<double>(used.loader_build_ns);
    sums.delay += static_cast<double>(used.loader_delay_ns);
    sums.cpu += static_cast<double>(used.user_ns + used.system_ns);
    sums.loader += static_cast<double>(used.loader_user_ns + used.loader_system_ns);
    sums.reads += static_cast<double>(used.read_calls);
    sums.read += static_cast<double>(used.read_bytes);
    sums.storage += static_cast<double>(used.storage_read_bytes);
    sums.samples += static_cast<double>(rank.counters.bytes_read);
    if (used.sampled_ns > rank.start_monotonic_ns)
      sums.seconds += static_cast<double>(used.sampled_ns - rank.start_monotonic_ns) * 1e-9;
    ++sums.ranks;
  }
  return sums;
}

std::string bytes(double count) {
  return format_bytes(static_cast<std::uint64_t>(count));
}

}  // namespace

std::optional<Advice> input_advice(const Run& run, double waiting) {
  const InputSums sums = sums_of(run);
  // Without a wait, threads that had to wait for a CPU cost only what they take from computing.
  const bool costs = waiting >= kDataWait || sums.loader >= kLoaderCpu * sums.cpu;
  if (sums.build > 0 && sums.delay >= kWithoutCpu * sums.build && costs) {
    const double without_cpu = 100 * sums.delay / sums.build;
    if (waiting >= kDataWait) {
      return Advice{
          "data-cpus",
          fmt::format(
              "The loader's threads had no CPU for {:.0f} % of the time in which they built batches, and training waited for data for {:.0f} % of the step.",
              without_cpu, 100 * waiting),
          "More workers would not help: give them CPUs of their own (more #SBATCH --cpus-per-task, and #SBATCH --pin=auto,workers=4)."};
    }
    return Advice{
        "data-cpus",
        fmt::format(
            "The loader's threads use {:.0f} % of the processor time and share the CPUs with computing: they had none for {:.0f} % of the time in which they built batches.",
            100 * sums.loader / sums.cpu, without_cpu),
        "Training does not wait for data, so use fewer workers (LoaderOptions{.workers = 1}; to_text(loader.advice()) says how many suffice), or give them CPUs of their own (more #SBATCH --cpus-per-task, and #SBATCH --pin=auto,workers=4)."};
  }
  if (waiting < kDataWait) return {};
  if (sums.samples == 0 && sums.seconds > 0 && sums.reads >= kManyReads * sums.seconds &&
      sums.read < kSmallRead * sums.reads) {
    return Advice{
        "small-reads",
        fmt::format(
            "Waiting for data takes {:.0f} % of the step, and each rank reads {} at a time, {:.0f} times a second.",
            100 * waiting, bytes(sums.read / sums.reads), sums.reads / sums.seconds),
        "Pack the small files into large ones (lockstep-pack create), and read them with our loader."};
  }
  if (sums.samples > 0 && sums.storage - kOtherReads * sums.ranks >= kReadTwice * sums.samples) {
    return Advice{
        "read-twice",
        fmt::format(
            "Waiting for data takes {:.0f} % of the step, and {} came from storage for {} of samples: parts are read more than once.",
            100 * waiting, bytes(sums.storage), bytes(sums.samples)),
        "Read the data once, in order, and then from the node: #SBATCH --stage=FOLDER, with --stage-tier=ram if it fits into memory; or ask for more memory (sbatch --mem), so that the kernel keeps what was read."};
  }
  return {};
}

}  // namespace lockstep::report
