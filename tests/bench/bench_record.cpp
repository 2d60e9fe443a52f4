// Measures the cost of timing a training step: a phase (a scope: two readings of the clock and an addition), a step's
// end, a span while a profile is taken, and a sample of what the process uses (a thread takes one each second). Prints a line for
// each: {"bench":"record","operation":…,"nanoseconds":…}, medians over rounds.

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/tool.h"
#include "exporters/record/record.h"
#include "runtime/profile/resource_sampler.h"
#include "runtime/profile/spans.h"
#include "runtime/profile/step_timer.h"

namespace lockstep {
namespace {

using record::Phase;

constexpr int kRounds = 21;
constexpr int kCalls = 20000;
constexpr int kSamples = 200;

double median_nanoseconds(const std::function<void()>& calls) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t begin = monotonic_ns();
    calls();
    rounds.push_back(static_cast<double>(monotonic_ns() - begin) / kCalls);
  }
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

void report(const char* operation, double nanoseconds) {
  Tool::print({{"bench", "record"}, {"operation", operation}, {"nanoseconds", nanoseconds}});
}

void run(const std::filesystem::path& folder) {
  record::Writer writer(folder / "writer.record", {.node = "n1", .program = "bench"});
  report("add_phase", median_nanoseconds([&] {
           for (int i = 0; i < kCalls; ++i) writer.add_phase(static_cast<Phase>(i % record::kPhases), 7);
         }));
  report("end_step", median_nanoseconds([&] {
           for (int i = 0; i < kCalls; ++i)
             writer.end_step(1000, 0, {.tokens = 1, .samples = 1, .padding = 0});
         }));
  profile::StepTimer timer({.node = "n1", .program = "bench"}, {.record = true, .folder = folder});
  if (timer.file().empty()) fail("the timer writes no record in {}", folder.string());
  report("phase", median_nanoseconds([&] {
           for (int i = 0; i < kCalls; ++i) const auto scope = timer.phase(Phase::forward);
         }));
  // The lower bound for a phase: two readings of the clock.
  report("clock", median_nanoseconds([&] {
           for (int i = 0; i < kCalls; ++i) {
             (void)monotonic_ns();
             (void)monotonic_ns();
           }
         }));
  report("sample", median_nanoseconds([&] {
                     for (int i = 0; i < kSamples; ++i) writer.set_resources(profile::sample_resources({}));
                   }) * kCalls /
                       kSamples);
  profile::start_spans();
  report("span", median_nanoseconds([&] {
           for (int i = 0; i < kCalls; ++i) {
             const std::uint64_t now = monotonic_ns();
             profile::add_span({.name = "aten::addmm", .begin_ns = now, .end_ns = now});
           }
         }));
  profile::stop_spans();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Tool tool("bench_record", "Measures the cost of timing a training step.");
  return tool.run(argc, argv, [&] {
    std::string folder = "/dev/shm/lockstep-bench-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) lockstep::fail_errno("cannot make {}", folder);
    try {
      lockstep::run(folder);
    } catch (...) {
      std::filesystem::remove_all(folder);
      throw;
    }
    std::filesystem::remove_all(folder);
  });
}
