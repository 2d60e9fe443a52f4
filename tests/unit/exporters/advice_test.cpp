// Each rule of the advisor against a run that has exactly one fault: only its advice appears, with the number and with
// the command or code that mends it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "common/clock.h"
#include "common/files.h"
#include "exporters/report/diagnosis.h"
#include "tests/unit/exporters/planned_run.h"

namespace lockstep::report {
namespace {

using lockstep::testing::MadeUpRun;
using lockstep::testing::RankStep;
using record::Writer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Fault {
  std::string rule;
  MadeUpRun::Change change{};
  std::string number{};  // in the finding
  std::string remedy{};
  std::function<void(MadeUpRun&)> prepare = {};
};

void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.rule;
}

// When, in the last quarter of the run.
bool lately(int step) {
  return step >= 48;
}

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30U;

// Each rank has a GPU of its own, which works as it should, except for the changes.
std::function<void(MadeUpRun&)> on_gpus(const std::function<void(record::Gpu& gpu, int rank)>& change = {}) {
  return [change](MadeUpRun& run) {
    run.also = [change](Writer& writer, int rank, int) {
      record::Gpu gpu{.granted = 2,
                      .uuid = {1, static_cast<std::uint64_t>(rank)},
                      .memory_bytes = 20 * kGiB,
                      .memory_peak_bytes = 30 * kGiB,
                      .memory_total_bytes = 80 * kGiB,
                      .measured_ns = 100'000'000'000,
                      .busy_ns = 95'000'000'000,
                      .capped_ns = 90'000'000'000,
                      .throttle_reasons = 0x4,
                      .sm_mhz = 1755,
                      .sm_max_mhz = 1980,
                      .ecc_corrected = 3};
      if (change) change(gpu, rank);
      writer.set_on_device();
      writer.set_resources({.sampled_ns = 1, .gpu = gpu});
    };
  };
}

// The loader's threads were ready to run and had no CPU for so many percent of the time in which they built batches.
// They used so many percent of the processor time.
std::function<void(MadeUpRun&)> loader_without_cpu(std::uint64_t percent, std::uint64_t of_cpu = 20) {
  return [=](MadeUpRun& run) {
    run.also = [=](Writer& writer, int, int step) {
      writer.add_loader_work({.build_ns = 100'000, .user_ns = of_cpu * 1000, .delay_ns = percent * 1000});
      writer.set_resources({.sampled_ns = 1, .user_ns = (static_cast<std::uint64_t>(step) + 1) * 100'000});
    };
  };
}

// Rank 0 profiled two steps of 100 ms. Nothing stands out, except for the change.
std::function<void(MadeUpRun&)> profiled(const std::function<void(nlohmann::json&)>& change) {
  return [change](MadeUpRun& run) {
    nlohmann::json profile = {
        {"rank", 0},
        {"node", "n1"},
        {"steps", 2},
        {"step_ms", 200.0},
        {"operators", {{{"name", "aten::mm"}, {"calls", 80}, {"total_ms", 120.0}, {"self_ms", 110.0}}}},
        {"modules", nlohmann::json::array()},
        {"small", {{"calls", 1800}, {"ms", 8.0}, {"name", "aten::add"}}},
        {"host_copies", nlohmann::json::array()},
        {"device_waits", nlohmann::json::array()},
        {"half_sums", nlohmann::json::array()}};
    change(profile);
    run.also = [profile, folder = run.folder.path()](Writer&, int rank, int step) {
      if (rank == 0 && step == 0) write_file_atomically(folder / "profile.json", profile.dump());
    };
  };
}

nlohmann::json counted(const char* name, int calls, int bytes = 0) {
  return {{"name", name}, {"calls", calls}, {"bytes", bytes}};
}

// Of each rank in 10 s. In fact a thousand times as much in 10,000 s, so that the test's own time does not count.
std::function<void(MadeUpRun&)> reads(std::uint64_t calls, std::uint64_t bytes_each,
                                      std::uint64_t from_storage, std::uint64_t of_samples) {
  return [=](MadeUpRun& run) {
    run.also = [=](Writer& writer, int, int step) {
      if (step == 0) writer.add_bytes_read(of_samples);
      writer.set_resources({.sampled_ns = monotonic_ns() + 10'000'000'000'000,
                            .read_bytes = 1000 * calls * bytes_each,
                            .read_calls = 1000 * calls,
                            .storage_read_bytes = from_storage});
    };
  };
}

std::vector<Fault> faults() {
  return {
      {"gpu-unused",
       {},
       "The job has 4 GPUs and computes on none of them.",
       "world.local_rank()",
       [](MadeUpRun& run) {
         run.also = [](Writer& writer, int, int) {
           writer.set_resources({.sampled_ns = 1, .gpu = {.granted = 2}});
         };
       }},
      {"gpu-unused",
       {},
       "The job has 6 GPUs and computes on 4 of them; n2 has unused ones.",
       "--gpus-per-node",
       on_gpus([](record::Gpu& gpu, int rank) { gpu.granted = rank == 3 ? 4 : 2; })},
      {"gpu-idle",
       {},
       "idle for 40 % of the time; the reason is between small kernels",
       "LOCKSTEP_PROFILE",
       on_gpus([](record::Gpu& gpu, int) {
         gpu.busy_ns = 60'000'000'000;
         gpu.memory_peak_bytes = 70 * kGiB;
       })},
      {"gpu-throttled",
       {},
       "The GPU of rank 2 on n2 ran 25 % of the time with lower clocks because of heat (690 of 1980 MHz now)",
       "--exclude=n2",
       on_gpus([](record::Gpu& gpu, int rank) {
         if (rank != 2) return;
         gpu.slowed_ns = 25'000'000'000;
         gpu.throttle_reasons = 0x48;
         gpu.sm_mhz = 690;
       })},
      {"gpu-ecc",
       {},
       "The GPU of rank 1 on n1 has 2 errors of its memory that could not be corrected",
       "GPU-00000000-0000-0001-0000-000000000001",
       on_gpus([](record::Gpu& gpu, int rank) { gpu.ecc_uncorrected = rank == 1 ? 2 : 0; })},
      {"gpu-fragmentation",
       {},
       "On the GPU of rank 2 on n2 LibTorch got no memory 9 times in",
       "expandable_segments:True",
       on_gpus([](record::Gpu& gpu, int rank) { gpu.allocator_retries = rank == 2 ? 9 : 1; })},
      {"gpu-xid",
       {},
       "The GPU of rank 1 on n1 reported 2 critical errors, the last one with Xid 79",
       "GPU-00000000-0000-0001-0000-000000000001",
       on_gpus([](record::Gpu& gpu, int rank) {
         gpu.xid_errors = rank == 1 ? 2 : 0;
         gpu.last_xid = 79;
       })},
      {"gpu-xid",
       {},
       "The GPU of rank 3 on n2 reported 1 critical error, the last one with Xid 31",
       "compute-sanitizer",
       on_gpus([](record::Gpu& gpu, int rank) {
         gpu.xid_errors = rank == 3 ? 1 : 0;
         gpu.last_xid = 31;
       })},
      {"data-workers", [](RankStep& does, int, int) { does.data_wait = 50; },
       "takes 36 % of the step on all ranks", "--pin=auto,workers=4",
       [](MadeUpRun& run) { run.staged("n1", 1, "done"); }},
      {"data-cpus", [](RankStep& does, int, int) { does.data_wait = 50; },
       "had no CPU for 40 % of the time in which they built batches, and training waited for data for 36 %",
       "--pin=auto,workers=4", loader_without_cpu(40)},
      {"data-cpus",
       {},
       "use 20 % of the processor time and share the CPUs with computing: they had none for 40 %",
       "LoaderOptions{.workers = 1}",
       loader_without_cpu(40)},
      {"small-operators",
       {},
       "900 operators of less than 10 µs in each step; they take 25 % of it. The most "
       "frequent one is aten::add.",
       "torch::stack",
       profiled([](nlohmann::json& profile) { profile["small"]["ms"] = 50.0; })},
      {"host-copies",
       {},
       "copies them to the device: aten::to 3 times, aten::copy_ once in each step, 4.00 KiB.",
       "register_buffer",
       profiled([](nlohmann::json& profile) {
         profile["host_copies"] = {counted("aten::copy_", 2, 4096), counted("aten::to", 6, 4096)};
       })},
      {"device-waits",
       {},
       "waits for the device in each step: aten::item 2 times",
       "step % 100",
       profiled([](nlohmann::json& profile) { profile["device_waits"] = {counted("aten::item", 4)}; })},
      {"autotuned-again",
       {},
       "for 3 convolutions with new shapes in each step",
       "cudnn_benchmark",
       profiled([](nlohmann::json& profile) { profile["tuned_again"] = {counted("aten::convolution", 6)}; })},
      {"no-tensor-cores",
       {},
       "computes for 80 % of the step, but only 5 % of that in kernels that use tensor cores. Most time takes "
       "volta_sgemm_128x64_tn.",
       "bfloat16",
       profiled([](nlohmann::json& profile) {
         profile["device"] = {{"computing_ms", 160.0},
                              {"tensor_cores_ms", 8.0},
                              {"communicating_ms", 0.0},
                              {"copying_ms", 0.0},
                              {"busy_ms", 160.0},
                              {"kernels", {{{"name", "volta_sgemm_128x64_tn"}, {"calls", 8}, {"ms", 90.0}}}}};
       })},
      {"half-sums",
       {},
       "rounded to 3 digits or less: aten::mean of 512 values in Half once.",
       "torch::kFloat",
       profiled([](nlohmann::json& profile) {
         profile["half_sums"] = {counted("aten::mean of 512 values in Half", 2)};
       })},
      {"small-reads", [](RankStep& does, int, int) { does.data_wait = 50; },
       "each rank reads 4.00 KiB at a time, 500 times a second", "lockstep-pack create",
       reads(5000, 4096, 0, 0)},
      {"read-twice", [](RankStep& does, int, int) { does.data_wait = 50; },
       "7.00 GiB came from storage for 1.00 GiB of samples", "--stage-tier=ram",
       reads(100, 1 << 20, 3 * kGiB / 4 + kGiB, kGiB / 4)},
      {"data-not-staged", [](RankStep& does, int, int) { does.data_wait = 50; }, "36 %", "#SBATCH --stage=",
       [](MadeUpRun& run) { run.also = [](Writer& writer, int, int) { writer.add_bytes_read(4096); }; }},
      {"data-rank", [](RankStep& does, int rank, int) { does.data_wait = rank == 2 ? 31.5 : 1; },
       "rank 2 on n2 waits for its data 30.", "iostat"},
      {"data-in-turns",
       [](RankStep& does, int rank, int step) { does.data_wait += step % 4 == rank ? 12 : 0; }, "12",
       "batches_ahead = 8"},
      {"staging-failed",
       {},
       "1 of 2 nodes read from the source",
       "lockstep-stage gc",
       [](MadeUpRun& run) {
         run.staged("n1", 1, "done");
         run.staged("n2", 1, "source");
       }},
      {"staging-slow",
       {},
       "Staging took 120 s, and all steps until now 6 s",
       "--stage-mode=background",
       [](MadeUpRun& run) { run.staged("n1", 120, "done"); }},
      {"slow-rank", [](RankStep& does, int rank, int) { does.backward += rank == 3 ? 20 : 0; },
       "rank 3 on n2 works 23 % longer per step than the median rank (backward)", "hwloc-ps -a"},
      {"slow-rank", [](RankStep& does, int rank, int) { does.slow_down(rank >= 2 ? 1.3 : 1); },
       "2 ranks on n2 (2, 3)", "on n2 for other processes"},
      {"slow-rank",
       [](RankStep& does, int rank, int step) { does.slow_down(rank == 1 && lately(step) ? 1.5 : 1); },
       "% slower than earlier in this run", "clock"},
      {"slow-in-turns",
       [](RankStep& does, int rank, int step) { does.backward += step % 4 == rank ? 20 : 0; }, "23 % longer",
       "for other processes (top)"},
      {"slow-in-turns",
       [](RankStep& does, int rank, int step) {
         if (step % 4 != rank) return;
         does.backward += 30;
         does.tokens = 1050;
       },
       "its tokens differ by 5 %", "lockstep-plan make --cost"},
      {"uneven-input",
       [](RankStep& does, int rank, int) {
         if (rank != 1) return;
         does.tokens = 1500;
         does.slow_down(1.5);
       },
       "rank 1 on n1 works 45 % longer per step than the median rank, because it has 50 % more tokens",
       "plan.cost"},
      {"uneven-input",
       [](RankStep& does, int rank, int) {
         if (rank != 1) return;
         does.samples = 4;
         does.slow_down(1.8);
       },
       "because its samples are 150 % longer", "lockstep-plan make --cost"},
      {"uneven-steps",
       [](RankStep& does, int rank, int step) {
         if (step % 4 != rank) return;
         does.tokens = 1300;
         does.slow_down(1.3);
       },
       "30 % more tokens", "lockstep-plan suggest"},
      {"cost", lockstep::testing::planned(768, 2304), "promised that the slowest rank works 1.000 times",
       "Set plan.cost = {2300, 1} instead of {768, 1}: a should be 3 times as large",
       [](MadeUpRun& run) { run.also = [](Writer& writer, int, int) { writer.set_cost_ratio(768); }; }},
      {"network-rank", [](RankStep& does, int rank, int) { does.late_network = rank == 3 ? 25 : 0; },
       "for the communication of rank 3 on n2", "ip -s link"},
      {"network-slower", [](RankStep& does, int, int step) { does.network = lately(step) ? 60 : 3; },
       "20.0 times as long as earlier", "ip -s link"},
      {"communication", [](RankStep& does, int, int) { does.network = 30; }, "takes 26 % of the step",
       "plan.accumulate"},
      {"padding", [](RankStep& does, int, int) { does.padding = 500; }, "33 % of the tokens", "plan.cap"},
      {"checkpoint", [](RankStep& does, int, int step) { does.checkpoint = step % 8 == 7 ? 120 : 0; },
       "takes 14 % of the step", "checkpointer.save(step)"},
      {"checkpoint-rank",
       [](RankStep& does, int rank, int step) { does.checkpoint = rank == 0 && step % 8 == 7 ? 120 : 0; },
       "while rank 0 on n1 writes", "local_dir"},
      {"long-steps", [](RankStep& does, int, int step) { does.other += step % 32 == 31 ? 600 : 0; },
       "2 of the last 62 steps", "world.timer().begin_step()"},
      {"no-phase", [](RankStep& does, int, int) { does.other = 60; }, "40 % of the step is in no phase",
       "Put the parts of the loop in scopes"},
      {"optimizer", [](RankStep& does, int, int) { does.optimizer = 40; }, "takes 32 % of the step",
       "FusedAdamW"},
      {"host-to-device", [](RankStep& does, int, int) { does.host_to_device = 20; }, "takes 18 % of the step",
       "LoaderOptions{.device"},
      {"skipped-steps",
       {},
       "skipped 11 % of the steps",
       "Autocast",
       [](MadeUpRun& run) {
         run.also = [](Writer& writer, int, int step) {
           writer.set_loss_scale(1024);
           if (step % 10 == 0) writer.add_skipped_step();
         };
       }},
      {"damaged-samples",
       {},
       "left out 2 damaged samples: 2 on rank 1 (n",
       "names each of them",
       [](MadeUpRun& run) {
         run.also = [](Writer& writer, int rank, int step) {
           if (rank == 1 && step < 2) writer.add_skipped_samples(1);
           writer.set_resources({.sampled_ns = 1});
         };
       }},
      {"slower-than-before", [](RankStep& does, int, int step) { does.slow_down(lately(step) ? 1.4 : 1); },
       "36 % more own time", "free -h"},
      {"no-tokens", [](RankStep& does, int, int) { does.tokens = does.padding = does.samples = 0; },
       "None of the 64 steps", "ddp.backward(loss, tokens)"},
  };
}

class Advisor : public ::testing::TestWithParam<Fault> {};

TEST_P(Advisor, NamesTheFaultAndNothingElse) {
  const Fault& fault = GetParam();
  MadeUpRun made_up;
  if (fault.prepare) fault.prepare(made_up);
  const auto run = made_up.make(fault.change);
  const auto advice = diagnose(run).advice;
  std::vector<std::string> rules;
  for (const Advice& one : advice) rules.push_back(one.rule);
  ASSERT_THAT(rules, ElementsAre(fault.rule));
  EXPECT_THAT(advice[0].finding, HasSubstr(fault.number));
  EXPECT_THAT(advice[0].remedy, HasSubstr(fault.remedy));
  EXPECT_TRUE(advice[0].finding.ends_with('.') && advice[0].remedy.ends_with('.')) << advice[0].text();
}

INSTANTIATE_TEST_SUITE_P(Rules, Advisor, ::testing::ValuesIn(faults()));

TEST(Advice, ACleanRunGetsNone) {
  for (const int ranks : {1, 2, 4}) {
    MadeUpRun made_up{.ranks = ranks};
    made_up.staged("n1", 30, "done");
    const auto run = made_up.make();
    EXPECT_THAT(diagnose(run).advice, IsEmpty()) << ranks << " ranks";
  }
  MadeUpRun made_up;
  const auto run = made_up.make();
  EXPECT_THAT(
      advise(run, diagnose(run)),
      ElementsAre(HasSubstr("Nothing stands out: waiting for data takes 1.1 % of the step, communication ")));
}

// Also if the memory is not used much: the busy GPUs compute, so a larger batch would change little.
TEST(Advice, GpusThatWorkGetNone) {
  MadeUpRun made_up;
  on_gpus()(made_up);
  const auto run = made_up.make();
  EXPECT_THAT(diagnose(run).advice, IsEmpty());
}

// With the cause of idle GPUs in the same report.
TEST(Advice, OfIdleGpusNamesTheReason) {
  const auto advice_of = [](const MadeUpRun::Change& change) {
    MadeUpRun made_up;
    on_gpus([](record::Gpu& gpu, int) { gpu.busy_ns = 40'000'000'000; })(made_up);
    const auto run = made_up.make(change);
    std::vector<std::string> rules;
    std::string reason;
    for (const Advice& one : diagnose(run).advice) {
      rules.push_back(one.rule);
      if (one.rule == "gpu-idle") reason = one.text();
    }
    return std::pair(rules, reason);
  };
  const auto waiting = advice_of([](RankStep& does, int, int) { does.data_wait = 50; });
  EXPECT_THAT(waiting.first, ElementsAre("data-workers", "gpu-idle"));
  EXPECT_THAT(waiting.second,
              HasSubstr("idle for 60 % of the time; the reason is waiting for data. Give the loader"));
  const auto communicating = advice_of([](RankStep& does, int, int) { does.network = 30; });
  EXPECT_THAT(communicating.first, ElementsAre("communication", "gpu-idle", "gpu-memory-unused"));
  EXPECT_THAT(communicating.second, HasSubstr("the reason is communication."));
}

TEST(Advice, OfUnusedMemoryOfGpusHasItsFigures) {
  const auto rules_with = [](std::uint64_t peak) {
    MadeUpRun made_up;
    on_gpus([&](record::Gpu& gpu, int rank) { gpu.memory_peak_bytes = rank == 3 ? peak : kGiB; })(made_up);
    const auto run = made_up.make([](RankStep& does, int, int) { does.network = 30; });
    std::vector<std::string> texts;
    for (const Advice& one : diagnose(run).advice) texts.push_back(one.rule + ": " + one.finding);
    return texts;
  };
  EXPECT_THAT(
      rules_with(25 * kGiB),
      ElementsAre(
          HasSubstr("communication: "),
          "gpu-memory-unused: rank 3 on n2 uses at most 25.0 GiB of its GPU's 80.0 GiB (31 %), more than any other."));
  EXPECT_THAT(rules_with(60 * kGiB), ElementsAre(HasSubstr("communication: ")))
      << "a larger cap does not fit";
}

// A loader that waits for bytes, large reads, and data that is read once get the ordinary advice.
TEST(Advice, InputWithoutTheseFaultsIsNotNamed) {
  for (const auto& prepare : {loader_without_cpu(10), reads(5000, 1 << 20, 0, 0), reads(50, 4096, 0, 0)}) {
    MadeUpRun made_up;
    prepare(made_up);
    const auto run = made_up.make([](RankStep& does, int, int) { does.data_wait = 50; });
    const auto advice = diagnose(run).advice;
    ASSERT_EQ(advice.size(), 1);
    EXPECT_EQ(advice[0].rule, "data-workers");
  }
  MadeUpRun made_up;
  reads(100, 1 << 20, 5 * kGiB / 4, kGiB)(made_up);
  const auto run = made_up.make([](RankStep& does, int, int) { does.data_wait = 50; });
  EXPECT_EQ(diagnose(run).advice.at(0).rule, "data-not-staged");
}

TEST(Advice, LoaderThreadsThatLackCpusAreNotNamedIfTheyCostNothing) {
  MadeUpRun made_up;
  loader_without_cpu(40, 2)(made_up);
  EXPECT_THAT(diagnose(made_up.make()).advice, IsEmpty());
}

TEST(Advice, AProfileWithoutTheseFaultsGetsNone) {
  const auto advice_on = [](const std::function<void(nlohmann::json&)>& change) {
    MadeUpRun made_up;
    profiled(change)(made_up);
    return diagnose(made_up.make()).advice;
  };
  EXPECT_THAT(advice_on([](nlohmann::json&) {}), IsEmpty());
  EXPECT_THAT(advice_on([](nlohmann::json& profile) {  // once in the two steps
                profile["device_waits"] = {counted("aten::item", 1)};
                profile["host_copies"] = {counted("aten::to", 1, 1 << 20)};
              }),
              IsEmpty());
  EXPECT_THAT(advice_on([](nlohmann::json& profile) {  // few calls
                profile["small"] = {{"calls", 400}, {"ms", 50.0}, {"name", "aten::add"}};
              }),
              IsEmpty());
}

TEST(Advice, UnusedGpusOfRanksWithoutRecordsAreNotNamed) {
  MadeUpRun made_up{.last_rank_written = 2};
  on_gpus()(made_up);
  const auto run = made_up.make();
  EXPECT_THAT(diagnose(run).advice, IsEmpty());
}

TEST(Advice, TimesInOneSentenceHaveOneUnit) {
  MadeUpRun made_up;
  const auto run = made_up.make([](RankStep& does, int rank, int) { does.slow_down(rank == 3 ? 16 : 12); });
  const auto advice = diagnose(run).advice;
  ASSERT_EQ(advice.size(), 1);
  EXPECT_THAT(advice[0].finding, HasSubstr("a step would take 957 ms instead of 1267 ms"));
}

TEST(Advice, EveryRuleIsDocumented) {
  const std::string page = read_text_file(METRICS_PAGE) + read_text_file(GPUS_PAGE);
  for (const Fault& fault : faults()) EXPECT_THAT(page, HasSubstr("| `" + fault.rule + "` |"));
}

}  // namespace
}  // namespace lockstep::report
