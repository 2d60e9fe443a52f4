// A job that writes real records without training, for tests and to try the report and the dashboards.
//
//   simulated_job FOLDER [--ranks 4] [--steps N] [--step-ms 20] [--slow RANK] [--data-wait SHARE] [--hold]
//   [--only RANK] [--program NAME] [--resources]
//
// Several processes can be the tasks of one job: each then writes only the record of its rank, --only. Steps
// take real time. With --resources each rank also uses memory, CPU and a GPU, and one granted GPU is not
// used. With --hold the records stay open, as if the ranks were alive, until standard input ends.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "exporters/record/record.h"

namespace {

using lockstep::record::Phase;
using lockstep::record::Writer;

struct Job {
  std::string folder;
  int ranks = 4;
  int steps = 50;
  double step_ms = 20;
  int slow = -1;
  double data_wait = 0.02;
  bool hold = false;
  int only = -1;
  std::string program = "simulated_job";
  bool resources = false;
};

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

// The use of a rank after `step` steps.
lockstep::record::Resources resources_after(const Job& job, int rank, int step) {
  const auto number = static_cast<std::uint64_t>(step) + 1;
  const auto ns = static_cast<std::uint64_t>(job.step_ms * 1e6) * number;
  constexpr std::uint64_t kGiB = 1ULL << 30U;
  lockstep::record::Resources used{.sampled_ns = now_ns(),
                                   .user_ns = ns / 2,
                                   .system_ns = ns / 20,
                                   .memory_bytes = 3 * kGiB,
                                   .memory_peak_bytes = 4 * kGiB,
                                   .memory_shared_bytes = kGiB,
                                   .memory_limit_bytes = 16 * kGiB,
                                   .memory_group = 1,
                                   .major_faults = number / 10,
                                   .read_bytes = 8192 * number,
                                   .read_calls = number,
                                   .involuntary_switches = number};
  used.gpu = {.granted = static_cast<std::uint64_t>(job.ranks) + 1,
              .uuid = {0x1122334455667788, 0x99aabbccddee0000 + static_cast<std::uint64_t>(rank)},
              .memory_bytes = 30 * kGiB,
              .memory_total_bytes = 80 * kGiB,
              .measured_ns = ns,
              .busy_ns = ns / 10 * 8,
              .slowed_ns = ns / 50,
              .capped_ns = ns / 25,
              .sm_mhz = 1410,
              .power_mw = 300'000,
              .energy_mj = ns / 1'000'000 * 300,
              .ecc_corrected = 1,
              .xid_errors = rank == job.slow ? 1U : 0U,
              .allocator_unused_bytes = kGiB};
  return used;
}

// All ranks wait for the slowest one, as in training.
void run_step(const Job& job, int step, const std::vector<std::unique_ptr<Writer>>& ranks,
              std::mt19937_64& random) {
  std::normal_distribution<double> noise(1.0, 0.02);
  std::vector<double> own(ranks.size());
  double slowest = 0;
  std::size_t last = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    own[rank] = job.step_ms * 0.85 * noise(random) * (static_cast<int>(rank) == job.slow ? 1.15 : 1.0);
    if (own[rank] > slowest) last = rank;
    slowest = std::max(slowest, own[rank]);
  }
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(slowest));
  const std::uint64_t end = now_ns();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank]) continue;
    const auto ns = [&](double share) { return static_cast<std::uint64_t>(own[rank] * share * 1e6); };
    const double rest = 1 - job.data_wait - 0.06;
    ranks[rank]->add_phase(Phase::data_wait, ns(job.data_wait));
    ranks[rank]->add_phase(Phase::host_to_device, ns(0.01));
    ranks[rank]->add_phase(Phase::forward, ns(rest * 0.35));
    ranks[rank]->add_phase(Phase::backward, ns(rest * 0.65));
    ranks[rank]->add_phase(Phase::optimizer, ns(0.04));
    const auto waited = static_cast<std::uint64_t>((slowest - own[rank] + job.step_ms * 0.03) * 1e6);
    ranks[rank]->add_phase(Phase::comm_exposed, waited);
    ranks[rank]->add_comm(waited, static_cast<std::uint64_t>((slowest - own[rank]) * 1e6),
                          rank == last ? -1 : static_cast<int>(last));
    ranks[rank]->add_bytes_read(8192);
    if (job.resources) {
      using lockstep::record::Collective;
      ranks[rank]->add_collective(Collective::all_reduce, 25'000'000, ns(0.1));
      ranks[rank]->add_loader_work({.build_ns = ns(0.05), .user_ns = ns(0.04), .system_ns = ns(0.005)});
      ranks[rank]->set_resources(resources_after(job, static_cast<int>(rank), step));
    }
    ranks[rank]->end_step(ns(1) + waited, end,
                          {.tokens = 4000 + random() % 96, .samples = 11, .padding = 37});
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app;
  Job job;
  app.add_option("folder", job.folder)->required();
  app.add_option("--ranks", job.ranks);
  app.add_option("--steps", job.steps);
  app.add_option("--step-ms", job.step_ms);
  app.add_option("--slow", job.slow);
  app.add_option("--data-wait", job.data_wait);
  app.add_option("--only", job.only);
  app.add_option("--program", job.program);
  app.add_flag("--hold", job.hold);
  app.add_flag("--resources", job.resources);
  CLI11_PARSE(app, argc, argv);

  std::filesystem::create_directories(job.folder);
  std::vector<std::unique_ptr<Writer>> ranks;
  for (int rank = 0; rank < job.ranks; ++rank) {
    if (job.only >= 0 && rank != job.only) {
      ranks.push_back(nullptr);
      continue;
    }
    std::array<char, 32> name{};
    std::snprintf(name.data(), name.size(), "rank-%06d.record", rank);
    ranks.push_back(std::make_unique<Writer>(
        job.folder + "/" + name.data(),
        lockstep::record::Identity{.job_id = 42,
                                   .step_id = 0,
                                   .rank = rank,
                                   .size = job.ranks,
                                   .local_rank = rank % 2,
                                   .node = "n" + std::to_string(1 + rank * 2 / job.ranks),
                                   .program = job.program}));
  }
  // In a task of a real job, staging writes the staging file.
  if (job.only < 0)
    std::ofstream(job.folder + "/staging.json")
        << R"({"job":42,"step":"0","node":"n1","sources":[)"
        << R"({"source":"/mnt/shared/manpages","bytes":16000000,"from_source":8000000,"from_peers":8000000,"hit":false,"seconds":0.4},)"
        << R"({"source":"/mnt/shared/tokenizer","bytes":900000,"from_source":0,"from_peers":0,"hit":true,"seconds":0.01}]})";
  std::mt19937_64 random(1);
  for (int step = 0; step < job.steps; ++step) run_step(job, step, ranks, random);
  if (job.hold) {
    std::cout << "done" << std::endl;
    std::string line;
    while (std::getline(std::cin, line)) {
    }
  }
  return 0;
}
