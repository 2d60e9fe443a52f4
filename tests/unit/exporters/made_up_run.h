// A run with chosen times, written by the real writer. All ranks of a step wait for the slowest one, as in training.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/files.h"
#include "exporters/record/record.h"
#include "exporters/report/run.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::testing {

/// A rank's work in a step, in milliseconds. Without changes nothing stands out.
struct RankStep {
  double data_wait = 1;
  double host_to_device = 1;
  double forward = 28;
  double backward = 50;
  double optimizer = 5;
  double checkpoint = 0;
  double other = 1;
  double network = 3;       ///< exposed communication; the step has that of the slowest rank
  double late_network = 0;  ///< how long the others wait for this rank's communication
  std::uint64_t tokens = 1000;
  std::uint64_t samples = 10;
  std::uint64_t padding = 10;
  std::uint64_t squares = 0;

  double own() const {
    return data_wait + host_to_device + forward + backward + optimizer + checkpoint + other;
  }
  void slow_down(double factor) {
    forward *= factor;
    backward *= factor;
  }
};

struct MadeUpRun {
  using Change = std::function<void(RankStep& does, int rank, int step)>;

  int ranks = 4;
  int ranks_per_node = 2;
  int steps = 64;
  int last_rank_written = 1000;  ///< the records of later ranks are missing
  bool communication_measured = true;
  bool synchronised = true;  ///< the ranks wait for each other in each step
  std::function<void(record::Writer& writer, int rank, int step)> also = {};
  TemporaryFolder folder{};  ///< of the records

  void staged(const std::string& node, double seconds, const std::string& state) const {
    write_file_atomically(
        folder / ("staging-" + node + ".json"),
        fmt::format(
            R"({{"node":"{}","state":"{}","sources":[{{"source":"/mnt/a","bytes":100,"from_source":100,)"
            R"("from_peers":0,"hit":false,"seconds":{}}}]}})",
            node, state, seconds));
  }

  report::Run make(const Change& change = {}) {
    std::vector<std::unique_ptr<record::Writer>> writers;
    for (int rank = 0; rank < ranks; ++rank) {
      const record::Identity identity{.job_id = 7,
                                      .rank = rank,
                                      .size = ranks,
                                      .node = fmt::format("n{}", 1 + rank / ranks_per_node),
                                      .program = "text_lm"};
      writers.push_back(
          rank > last_rank_written
              ? nullptr
              : std::make_unique<record::Writer>(folder / fmt::format("rank-{:06}.record", rank), identity));
    }
    for (int step = 0; step < steps; ++step) write_step(writers, change, step);
    writers.clear();
    return report::load({folder.path()});
  }

 private:
  void write_step(const std::vector<std::unique_ptr<record::Writer>>& writers, const Change& change,
                  int step) const {
    std::vector<RankStep> does(static_cast<std::size_t>(ranks));
    int last = 0;
    double network = 0;
    double late_network = 0;
    int late_rank = -1;
    for (int rank = 0; rank < ranks; ++rank) {
      RankStep& mine = does[static_cast<std::size_t>(rank)];
      mine.forward += (rank * 7 + step * 5) % 11 * 0.1;  // no two ranks are equal, and none is always last
      if (change) change(mine, rank, step);
      if (mine.own() > does[static_cast<std::size_t>(last)].own()) last = rank;
      network = std::max(network, mine.network);
      if (mine.late_network > late_network) late_rank = rank;
      late_network = std::max(late_network, mine.late_network);
    }
    const double slowest = does[static_cast<std::size_t>(last)].own();
    for (int rank = 0; rank < ranks; ++rank) {
      record::Writer* writer = writers[static_cast<std::size_t>(rank)].get();
      if (writer == nullptr) continue;
      const RankStep& mine = does[static_cast<std::size_t>(rank)];
      const double late = rank == late_rank ? 0 : late_network;
      const double end = synchronised ? slowest : mine.own();
      const double wait = end - mine.own() + late;
      using record::Phase;
      writer->add_phase(Phase::data_wait, ns(mine.data_wait));
      writer->add_phase(Phase::host_to_device, ns(mine.host_to_device));
      writer->add_phase(Phase::forward, ns(mine.forward));
      writer->add_phase(Phase::backward, ns(mine.backward));
      writer->add_phase(Phase::optimizer, ns(mine.optimizer));
      writer->add_phase(Phase::checkpoint, ns(mine.checkpoint));
      writer->add_phase(Phase::comm_exposed, ns(end - mine.own() + late_network + network));
      if (communication_measured) {
        writer->add_comm(ns(network + 5), ns(wait), wait <= 0 ? -1 : (late > 0 ? late_rank : last));
      }
      if (also) also(*writer, rank, step);
      writer->end_step(
          ns(end + late_network + network), 0,
          {.tokens = mine.tokens, .samples = mine.samples, .padding = mine.padding, .squares = mine.squares});
    }
  }

  static std::uint64_t ns(double milliseconds) {
    return static_cast<std::uint64_t>(std::max(0.0, milliseconds) * 1e6);
  }
};

}  // namespace lockstep::testing
