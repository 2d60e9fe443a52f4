#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "common/process.h"
#include "common/statistics.h"
#include "exporters/report/diagnosis.h"

namespace lockstep::report {
namespace {

using record::Phase;
using record::Snapshot;
using record::Step;

constexpr std::size_t kStepsForPast = 32;
constexpr std::size_t kMaxFound = 16;
// Smaller losses, as shares of the step, are not reported: on a busy machine ranks take turns at being a little late,
// for reasons that the record does not show.
constexpr double kWorth = 0.05;
constexpr double kWorthInTurns = 0.08;
constexpr double kWorthNetwork = 0.10;
// A rank is named if it alone causes this share of the lost time.
constexpr double kPersistent = 0.6;
// Ranks that wait for each other in every step end it at nearly the same time: more than this share of the step between
// the first and the last of them means that they do not.
constexpr double kSameStep = 0.10;

constexpr std::array kCompute = {Phase::host_to_device, Phase::forward, Phase::backward, Phase::optimizer,
                                 Phase::other};

double to_ms(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}

double compute_of(const Step& step) {
  double sum = 0;
  for (const Phase phase : kCompute) sum += step.phase_ms(phase);
  return sum;
}

double tokens_of(const Step& step) {
  return static_cast<double>(step.tokens + step.padding);
}

// For each value the median of the other values; a single value is its own.
std::vector<double> medians_of_others(const std::vector<double>& values) {
  const std::size_t count = values.size();
  if (count == 1) return {values[0]};
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> medians(count);
  for (std::size_t place = 0; place < count; ++place) {
    const auto other = [&](std::size_t i) { return values[order[i < place ? i : i + 1]]; };
    const std::size_t half = (count - 1) / 2;
    medians[order[place]] = (count - 1) % 2 == 1 ? other(half) : (other(half - 1) + other(half)) / 2;
  }
  return medians;
}

template <typename Value>
double median_of_others(const StepRow& row, std::size_t without, const Value& value) {
  std::vector<double> others;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i != without || row.size() == 1) others.push_back(value(*row[i]));
  }
  return median(std::move(others));
}

// The newest quarter of the values (one for each step, oldest first) ÷ those before.
std::optional<double> newest_to_past(const std::vector<double>& values) {
  if (values.size() < kStepsForPast) return std::nullopt;
  const auto newest = values.end() - static_cast<std::ptrdiff_t>(values.size() / 4);
  const double past = median({values.begin(), newest});
  if (past <= 0) return std::nullopt;
  return median({newest, values.end()}) / past;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The late rank of each step compared with the median of the others: means per step.
struct Difference {
  std::array<double, record::kPhases> phase_ms{};
  double own_of_others = 0;
  double compute_of_others = 0;
  double tokens = 1;  // ÷ those of the others
  double length = 1;  // of samples, ÷ that of the others

  double of(Phase phase) const { return phase_ms[record::index(phase)]; }
  double computing() const {
    double sum = 0;
    for (const Phase phase : kCompute) sum += of(phase);
    return sum;
  }
};

// Attention costs in proportion to the length of a sample, so tokens in longer samples take up to that much longer.
Cause cause_of(const Difference& late) {
  const double computing = std::max(0.0, late.computing());
  const double by_input =
      std::clamp(late.compute_of_others * (late.tokens * std::max(1.0, late.length) - 1), 0.0, computing);
  const std::array<std::pair<double, Cause>, 4> parts = {{{computing - by_input, Cause::slow_worker},
                                                          {by_input, Cause::uneven_input},
                                                          {late.of(Phase::data_wait), Cause::input_data},
                                                          {late.of(Phase::checkpoint), Cause::checkpoint}}};
  return std::max_element(parts.begin(), parts.end(),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

std::string phases_that_differ(const Difference& late, double threshold_ms) {
  std::string phases;
  for (std::size_t i = 0; i < record::kPhases; ++i) {
    if (static_cast<Phase>(i) == Phase::comm_exposed || late.phase_ms[i] <= threshold_ms) continue;
    phases += (phases.empty() ? "" : ", ") + std::string(record::kPhaseNames[i]);
  }
  return phases;
}

class Search {
 public:
  Search(const Run& run, const std::vector<StepRow>& rows) : run_(run), rows_(rows) {
    for (const StepRow& row : rows_) {
      std::vector<double> own;
      for (const Step* step : row) own.push_back(step->own_ms());
      others_.push_back(medians_of_others(own));
      slowest_.push_back(static_cast<std::size_t>(std::max_element(own.begin(), own.end()) - own.begin()));
      own_.push_back(std::move(own));
    }
  }

  Stragglers take() {
    Stragglers result;
    result.steps = rows_.size();
    if (rows_.empty()) return result;
    measure_steps();
    result.step_ms = step_ms_;
    own_loss_ = loss_of([](const Step& step) { return step.own_ms(); });
    const std::vector<double> own = mean_own();
    if (mean(own) > 0) result.imbalance = saved_if_equal() / mean(own);
    score_ranks();
    if (run_.ranks.size() > 1) {
      find_late_ranks(result);
      find_network(result);
    }
    result.ranks = std::move(scores_);
    std::stable_sort(result.found.begin(), result.found.end(),
                     [](const auto& a, const auto& b) { return a.lost_ms > b.lost_ms; });
    return result;
  }

 private:
  template <typename Value>
  double mean_over_rows(const Value& value) const {
    double sum = 0;
    for (std::size_t row = 0; row < rows_.size(); ++row) sum += value(row);
    return sum / static_cast<double>(rows_.size());
  }

  // Ranks that do not wait for each other have steps of their own length, and the slowest rank ends last.
  void measure_steps() {
    std::vector<double> means(run_.ranks.size());
    double spread = 0;
    for (const StepRow& row : rows_) {
      double shortest = to_ms(row.front()->step_ns);
      double longest = shortest;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const double step = to_ms(row[i]->step_ns);
        means[i] += step / static_cast<double>(rows_.size());
        shortest = std::min(shortest, step);
        longest = std::max(longest, step);
      }
      spread += (longest - shortest) / static_cast<double>(rows_.size());
    }
    step_ms_ = *std::max_element(means.begin(), means.end());
    synchronised_ = spread <= kSameStep * step_ms_;
  }

  // How much longer a phase takes than on the median of the others: on each rank, and on the slowest rank of each step.
  // Means per step. If one rank is always the slowest, its value equals by_worst.
  struct Loss {
    std::vector<double> by_rank{};
    double by_worst = 0;
  };

  template <typename Value>
  Loss loss_of(const Value& value) const {
    Loss loss{.by_rank = std::vector<double>(run_.ranks.size())};
    const auto count = static_cast<double>(rows_.size());
    for (const StepRow& row : rows_) {
      std::vector<double> values;
      for (const Step* step : row) values.push_back(value(*step));
      const std::vector<double> others = medians_of_others(values);
      for (std::size_t i = 0; i < row.size(); ++i) loss.by_rank[i] += (values[i] - others[i]) / count;
      const auto worst = std::max_element(values.begin(), values.end()) - values.begin();
      loss.by_worst +=
          (values[static_cast<std::size_t>(worst)] - others[static_cast<std::size_t>(worst)]) / count;
    }
    return loss;
  }

  bool persistent(const Loss& loss, std::size_t rank) const {
    return loss.by_rank[rank] >= std::max(kWorth * step_ms_, kPersistent * loss.by_worst);
  }

  // The time that a step would save if these ranks were like the median rank; then another rank is the last one.
  double saved_without(const std::vector<std::size_t>& ranks) const {
    const auto saved = [&](const std::vector<double>& own) {
      double slowest = 0;
      double next = 0;
      for (std::size_t i = 0; i < own.size(); ++i) {
        slowest = std::max(slowest, own[i]);
        if (std::find(ranks.begin(), ranks.end(), i) == ranks.end()) next = std::max(next, own[i]);
      }
      return slowest - next;
    };
    if (!synchronised_) return saved(mean_own());
    return mean_over_rows([&](std::size_t row) { return saved(own_[row]); });
  }

  // The time that a step would save if the work of all ranks were shared equally: each would work as long as the mean.
  double saved_if_equal() const {
    const auto saved = [](const std::vector<double>& own) {
      return *std::max_element(own.begin(), own.end()) - mean(own);
    };
    if (!synchronised_) return saved(mean_own());
    return mean_over_rows([&](std::size_t row) { return saved(own_[row]); });
  }

  // By rank.
  std::vector<double> mean_own() const {
    std::vector<double> means(run_.ranks.size());
    for (std::size_t i = 0; i < means.size(); ++i) {
      means[i] = mean_over_rows([&](std::size_t row) { return own_[row][i]; });
    }
    return means;
  }

  double often(const std::vector<std::size_t>& ranks) const {
    return mean_over_rows([&](std::size_t row) {
      return std::find(ranks.begin(), ranks.end(), slowest_[row]) == ranks.end() ? 0.0 : 1.0;
    });
  }

  void score_ranks() {
    std::map<int, double> delays;
    for (std::size_t i = 0; i < run_.ranks.size(); ++i) {
      const Snapshot& rank = run_.ranks[i];
      RankScore score{.rank = rank.identity.rank, .node = rank.identity.node, .to_past = {}};
      std::vector<double> own;
      for (const auto& row : own_) own.push_back(row[i]);
      score.own_ms = mean(own);
      const double others = mean_over_rows([&](std::size_t row) { return others_[row][i]; });
      if (others > 0) score.to_peers = score.own_ms / others;
      score.to_past = newest_to_past(own);
      for (const auto& [late, seconds] : record::waits_by_rank(rank.steps)) {
        delays[late] += seconds * 1e3 / std::max(1.0, static_cast<double>(run_.ranks.size() - 1));
        if (seconds * 1e3 <= score.waits_ms) continue;
        score.late_rank = late;
        score.waits_ms = seconds * 1e3;
      }
      score.step_ms_if_median = step_ms_ - (run_.ranks.size() > 1 ? saved_without({i}) : 0);
      scores_.push_back(std::move(score));
    }
    for (RankScore& score : scores_) score.delays_ms = delays[score.rank];
  }

  // `late[row]` is the late rank of each step.
  Difference difference(const std::vector<std::size_t>& late) const {
    Difference result;
    double tokens = 0;
    double tokens_of_others = 0;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const Step& step = *rows_[row][late[row]];
      for (std::size_t i = 0; i < record::kPhases; ++i) {
        const auto phase = static_cast<Phase>(i);
        const auto value = [&](const Step& other) { return other.phase_ms(phase); };
        result.phase_ms[i] += step.phase_ms(phase) - median_of_others(rows_[row], late[row], value);
      }
      result.own_of_others += others_[row][late[row]];
      result.compute_of_others += median_of_others(rows_[row], late[row], compute_of);
      tokens += tokens_of(step);
      tokens_of_others += median_of_others(rows_[row], late[row], tokens_of);
    }
    const auto count = static_cast<double>(rows_.size());
    for (double& ms : result.phase_ms) ms /= count;
    result.own_of_others /= count;
    result.compute_of_others /= count;
    if (tokens_of_others > 0) result.tokens = tokens / tokens_of_others;
    return result;
  }

  // Tokens per sample of this rank ÷ those of the median of the others; 1 if not all ranks have samples.
  double length_of_samples(std::size_t rank) const {
    std::vector<double> lengths;
    for (const Snapshot& each : run_.ranks) {
      if (each.counters.samples == 0) return 1;
      lengths.push_back(static_cast<double>(each.counters.tokens) /
                        static_cast<double>(each.counters.samples));
    }
    const double others = medians_of_others(lengths)[rank];
    return others > 0 ? lengths[rank] / others : 1;
  }

  static Straggler straggler_of(const Difference& late, double lost_ms) {
    Straggler found{.cause = cause_of(late), .lost_ms = lost_ms, .to_past = {}};
    found.excess = late.own_of_others > 0 ? lost_ms / late.own_of_others : 0;
    found.more_tokens = late.tokens - 1;
    found.longer_samples = late.length - 1;
    found.phases = phases_that_differ(late, lost_ms / 10);
    return found;
  }

  // Looks for waiting and writing first, so that ranks that take turns at computing do not hide a rank that reads or
  // writes slowly.
  void find_late_ranks(Stragglers& result) const {
    const Loss reading = loss_of([](const Step& step) { return step.phase_ms(Phase::data_wait); });
    const Loss writing = loss_of([](const Step& step) { return step.phase_ms(Phase::checkpoint); });
    std::vector<std::pair<double, std::size_t>> late;
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      const double excess = own_loss_.by_rank[rank];
      if (excess < kWorth * step_ms_) continue;
      if (persistent(own_loss_, rank) || persistent(reading, rank) || persistent(writing, rank)) {
        late.emplace_back(excess, rank);
      }
    }
    std::sort(late.rbegin(), late.rend());
    if (late.size() > kMaxFound) late.resize(kMaxFound);
    for (const auto& [excess, rank] : late) add_rank(result, rank, excess);
    if (late.empty() && synchronised_ && own_loss_.by_worst >= kWorth * step_ms_) {
      add_turns(result, own_loss_.by_worst);
    }
    std::vector<std::size_t> all;
    for (const auto& [excess, rank] : late) all.push_back(rank);
    if (result.found.size() > 1) result.step_ms_without_late = step_ms_ - saved_without(all);
  }

  void add_rank(Stragglers& result, std::size_t rank, double excess) const {
    Difference late = difference(std::vector<std::size_t>(rows_.size(), rank));
    late.length = length_of_samples(rank);
    Straggler found = straggler_of(late, excess);
    const record::Identity& identity = run_.ranks[rank].identity;
    found.node = identity.node;
    found.ranks = {identity.rank};
    found.to_past = scores_[rank].to_past;
    found.often = often({rank});
    found.step_ms_without =
        found.cause == Cause::uneven_input ? step_ms_ - saved_if_equal() : scores_[rank].step_ms_if_median;
    const auto same = std::find_if(result.found.begin(), result.found.end(), [&](const Straggler& other) {
      return other.node == found.node && other.cause == found.cause;
    });
    if (same == result.found.end()) {
      result.found.push_back(std::move(found));
      return;
    }
    same->ranks.push_back(identity.rank);
    std::sort(same->ranks.begin(), same->ranks.end());
    std::vector<std::size_t> group;
    for (std::size_t i = 0; i < run_.ranks.size(); ++i) {
      const auto& ranks = same->ranks;
      if (std::binary_search(ranks.begin(), ranks.end(), run_.ranks[i].identity.rank)) group.push_back(i);
    }
    same->often = often(group);
    if (same->cause != Cause::uneven_input) same->step_ms_without = step_ms_ - saved_without(group);
  }

  void add_turns(Stragglers& result, double lost) const {
    Straggler found = straggler_of(difference(slowest_), lost);
    if (found.cause == Cause::slow_worker && lost < kWorthInTurns * step_ms_) return;
    found.often = 1;
    // Work can be shared out again; waiting and writing go away.
    const bool is_work = found.cause == Cause::uneven_input || found.cause == Cause::slow_worker;
    if (is_work) found.lost_ms = saved_if_equal();
    if (is_work && found.lost_ms < kWorth * step_ms_) return;
    found.step_ms_without = step_ms_ - found.lost_ms;
    result.found.push_back(std::move(found));
  }

  // If records of some ranks are missing, the late rank may be one of those: then subtracts the measured waiting.
  double network_of(const StepRow& row, bool complete) const {
    double smallest = -1;
    for (const Step* step : row) {
      const double exposed = step->phase_ms(Phase::comm_exposed) - (complete ? 0 : to_ms(step->comm_wait_ns));
      smallest = smallest < 0 ? exposed : std::min(smallest, exposed);
    }
    return std::max(0.0, smallest);
  }

  void find_network(Stragglers& result) const {
    const bool complete = run_.ranks.size() == static_cast<std::size_t>(run_.ranks.front().identity.size);
    const bool measured = std::all_of(run_.ranks.begin(), run_.ranks.end(), [](const Snapshot& rank) {
      return rank.counters.communication_measured();
    });
    if (!complete && !measured) return;
    std::vector<double> network;
    for (const StepRow& row : rows_) network.push_back(network_of(row, complete));
    result.network_ms = mean(network);
    if (result.network_ms < kWorthNetwork * step_ms_) return;
    Straggler found{
        .cause = Cause::network, .lost_ms = result.network_ms, .to_past = newest_to_past(network)};
    found.step_ms_without = step_ms_ - result.network_ms;
    found.phases = "comm_exposed";
    // The others wait for a late rank even if it works no longer than they do.
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      const double late_ms = scores_[i].delays_ms - std::max(0.0, own_loss_.by_rank[i]);
      if (late_ms < result.network_ms / 2 || (!found.ranks.empty() && late_ms <= found.lost_ms)) continue;
      found.ranks = {scores_[i].rank};
      found.node = scores_[i].node;
      found.lost_ms = late_ms;
      found.step_ms_without = step_ms_ - late_ms;
    }
    result.found.push_back(std::move(found));
  }

  const Run& run_;
  const std::vector<StepRow>& rows_;
  std::vector<std::vector<double>> own_;     // milliseconds, by step and rank
  std::vector<std::vector<double>> others_;  // median of the other ranks
  std::vector<std::size_t> slowest_;         // by step
  std::vector<RankScore> scores_;
  double step_ms_ = 0;
  bool synchronised_ = true;
  Loss own_loss_;
};

}  // namespace

Stragglers find_stragglers(const Run& run, const std::vector<StepRow>& rows) {
  return Search(run, rows).take();
}

std::string who(const Straggler& straggler) {
  if (straggler.ranks.size() == 1) return lockstep::rank_name(straggler.ranks.front(), straggler.node);
  return fmt::format("{} ranks on {} ({})", straggler.ranks.size(), straggler.node,
                     fmt::join(straggler.ranks, ", "));
}

}  // namespace lockstep::report
