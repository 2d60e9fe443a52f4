#include "exporters/top/live.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "common/statistics.h"
#include "common/units.h"
#include "exporters/report/report.h"

namespace lockstep::top {
namespace {

using record::kPhases;
using record::Snapshot;
using record::Step;

double seconds_since(std::uint64_t then_ns, std::uint64_t now_ns) {
  return then_ns < now_ns ? static_cast<double>(now_ns - then_ns) * 1e-9 : 0;
}

std::string state_of(const Snapshot& rank) {
  if (rank.alive) return "running";
  return rank.finished_unix_ns != 0 ? "finished" : "died";
}

void average(const Snapshot& rank, LiveRank& live) {
  const auto first =
      rank.steps.end() - static_cast<std::ptrdiff_t>(std::min(record::kRecentSteps, rank.steps.size()));
  const std::vector<Step> steps(first, rank.steps.end());
  if (steps.empty()) return;
  double step_ns = 0;
  double own_ns = 0;
  double wait_ns = 0;
  double tokens = 0;
  std::array<double, kPhases> phase_ns{};
  for (const Step& step : steps) {
    step_ns += static_cast<double>(step.step_ns);
    own_ns += static_cast<double>(step.own_ns());
    wait_ns += static_cast<double>(step.comm_wait_ns);
    tokens += static_cast<double>(step.tokens);
    for (std::size_t i = 0; i < phase_ns.size(); ++i) phase_ns[i] += static_cast<double>(step.phase_ns[i]);
  }
  const double per_step_ms = 1e-6 / static_cast<double>(steps.size());
  live.step_ms = step_ns * per_step_ms;
  live.own_ms = own_ns * per_step_ms;
  if (rank.counters.communication_measured()) live.wait_ms = wait_ns * per_step_ms;
  if (const auto wait = record::longest_wait(rank.recent_waits)) live.late_rank = wait->first;
  if (step_ns == 0) return;
  live.tokens_per_second = tokens * 1e9 / step_ns;
  for (std::size_t i = 0; i < phase_ns.size(); ++i) live.shares[i] = phase_ns[i] / step_ns;
}

LiveRank measure_rank(const Snapshot& rank, std::uint64_t now_ns) {
  LiveRank live;
  live.rank = rank.identity.rank;
  live.node = rank.identity.node;
  live.state = state_of(rank);
  live.steps = rank.counters.steps;
  average(rank, live);
  if (rank.resources) {
    live.cpus = report::cpus_used(rank);
    live.memory_bytes = rank.resources->memory_bytes;
    if (rank.resources->gpu.sampled()) live.gpu = rank.resources->gpu;
  }
  if (!rank.alive) return live;  // the record may be of another node, which has another clock
  live.now = rank.doing;
  if (rank.doing) live.now_seconds = seconds_since(rank.doing_since_ns, now_ns);
  const bool stepped = rank.counters.steps > 0;
  live.idle_seconds =
      seconds_since(stepped ? rank.counters.last_step_end_ns : rank.start_monotonic_ns, now_ns);
  return live;
}

constexpr double kStraggler = 1.15;  // as in the alert LockstepStraggler
constexpr std::array<const char*, kPhases> kHeads = {"data", "copy",  "forw",  "back",
                                                     "comm", "optim", "check", "other"};
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kRed = "\x1b[31m";
constexpr const char* kPlain = "\x1b[0m";

// The longest beginning of a UTF-8 text that is not wider than `columns`.
std::string cut(const std::string& text, std::size_t columns) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xc0U) != 0x80U;
    if (begins && ++width > columns) return text.substr(0, i);
  }
  return text;
}

std::string now(const LiveRank& rank) {
  if (rank.state != "running") return rank.state;
  if (!rank.now) return rank.steps == 0 ? "starting" : "running";
  const std::string phase(record::name(*rank.now));
  return rank.now_seconds < 2 ? phase : fmt::format("{} {}", phase, format_seconds(rank.now_seconds));
}

std::string number(double milliseconds) {
  return fmt::format("{:.{}f}", milliseconds, milliseconds < 1000 ? 1 : 0);
}

// The columns of GPUs appear if a rank has one.
constexpr const char* kGpuHeads = "   gpu  gpu_mem   MHz";

std::string gpu_cells(const LiveRank& rank) {
  if (!rank.gpu) return fmt::format(" {:>5} {:>8} {:>5}", "-", "-", "-");
  return fmt::format(" {:>4}% {:>8} {:>5}", rank.gpu->busy_percent, format_bytes(rank.gpu->memory_bytes),
                     rank.gpu->sm_mhz);
}

std::string row(const LiveRank& rank, const std::vector<std::size_t>& phases, std::size_t node_width,
                std::size_t now_width) {
  std::string line = fmt::format(
      "{:>4} {:<{}} {:<{}} {:>8} {:>8} {:>8} {:>9} {:>7} {:>4}", rank.rank, rank.node, node_width, now(rank),
      now_width, rank.steps, number(rank.step_ms), number(rank.own_ms), format_count(rank.tokens_per_second),
      rank.wait_ms ? number(*rank.wait_ms) : "-", rank.late_rank ? std::to_string(*rank.late_rank) : "-");
  for (const std::size_t phase : phases) line += fmt::format(" {:>4.0f}%", 100 * rank.shares[phase]);
  return line + fmt::format(" {:>5} {:>8}", rank.cpus ? number(*rank.cpus) : "-",
                            rank.cpus ? format_bytes(rank.memory_bytes) : "-");
}

std::string heading(const std::vector<std::size_t>& phases, std::size_t node_width, std::size_t now_width) {
  std::string line =
      fmt::format("{:>4} {:<{}} {:<{}} {:>8} {:>8} {:>8} {:>9} {:>7} {:>4}", "rank", "node", node_width,
                  "now", now_width, "steps", "step_ms", "own_ms", "tokens/s", "wait_ms", "for");
  for (const std::size_t phase : phases) line += fmt::format(" {:>5}", kHeads[phase]);
  return line + fmt::format(" {:>5} {:>8}", "cpus", "memory");
}

std::string summary(const Live& live) {
  const auto slowest = std::max_element(live.ranks.begin(), live.ranks.end(),
                                        [](const auto& a, const auto& b) { return a.own_ms < b.own_ms; });
  std::string line = format_count(live.tokens_per_second) + " tokens/s";
  if (live.median_own_ms > 0 && live.ranks.size() > 1) {
    line += fmt::format(" · rank {} works longest, {:+.0f} % over the median", slowest->rank,
                        100 * (slowest->own_ms / live.median_own_ms - 1));
  }
  double idle = 0;
  for (const LiveRank& rank : live.ranks) idle = std::max(idle, rank.idle_seconds.value_or(0));
  if (idle >= 10) line += fmt::format(" · no step for {}", format_seconds(idle));
  return line;
}

std::vector<std::size_t> phases_with_time(const Live& live) {
  std::vector<std::size_t> phases;
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    const auto took_time = [&](const LiveRank& rank) { return rank.shares[phase] > 0; };
    if (std::any_of(live.ranks.begin(), live.ranks.end(), took_time)) phases.push_back(phase);
  }
  return phases;
}

// In the order of ranks; if they do not fit, those with the longest own time first.
std::vector<const LiveRank*> shown(const Live& live, std::size_t rows) {
  std::vector<const LiveRank*> ranks;
  for (const LiveRank& rank : live.ranks) ranks.push_back(&rank);
  if (ranks.size() <= rows) return ranks;
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const LiveRank* a, const LiveRank* b) { return a->own_ms > b->own_ms; });
  ranks.resize(rows);
  return ranks;
}

const char* colour(const LiveRank& rank, const Live& live) {
  if (rank.state != "running") return kDim;
  return rank.own_ms > kStraggler * live.median_own_ms && live.ranks.size() > 1 ? kRed : "";
}

}  // namespace

Live measure(const report::Run& run, std::uint64_t now_ns) {
  Live live;
  live.job = run.ranks.front().identity;
  live.title = report::title(run);
  live.state = report::state(run);
  live.notes = run.notes;
  std::vector<double> own;
  for (const Snapshot& rank : run.ranks) {
    live.ranks.push_back(measure_rank(rank, now_ns));
    live.tokens_per_second += live.ranks.back().tokens_per_second;
    if (live.ranks.back().own_ms > 0) own.push_back(live.ranks.back().own_ms);
  }
  live.median_own_ms = median(std::move(own));
  live.verdict = report::find_verdict(run, report::common_steps(run));
  std::set<std::string> nodes;
  for (const LiveRank& rank : live.ranks) nodes.insert(rank.node);
  if (static_cast<int>(live.ranks.size()) < live.job.size) {
    live.notes.push_back(fmt::format(
        "these are the ranks on {}; for another node: srun --jobid={} --overlap --pty -N1 -n1 -w NODE lockstep-top {}",
        fmt::join(nodes, ", "), live.job.job_id, live.job.job_id));
  }
  return live;
}

std::vector<std::string> to_lines(const Live& live, const Space& space) {
  const std::vector<std::size_t> phases = phases_with_time(live);
  std::size_t node_width = 4;
  std::size_t now_width = 14;  // does not change with every phase
  for (const LiveRank& rank : live.ranks) {
    node_width = std::max(node_width, rank.node.size());
    now_width = std::max(now_width, now(rank).size());
  }
  std::vector<std::string> lines;
  const auto add = [&](const std::string& text, const std::string& look) {
    if (lines.size() == space.rows) return;
    const std::string fitting = cut(text, space.columns);
    lines.push_back(space.colours && !look.empty() ? look + fitting + kPlain : fitting);
  };
  add(live.title + " · " + live.state, "");
  add(summary(live), "");
  add(live.verdict ? report::bound_line(*live.verdict) : "", "");
  const bool gpus = std::any_of(live.ranks.begin(), live.ranks.end(),
                                [](const LiveRank& rank) { return rank.gpu.has_value(); });
  add(heading(phases, node_width, now_width) + (gpus ? kGpuHeads : ""), kBold);
  const std::size_t other_lines = lines.size() + live.notes.size();
  std::size_t rows = space.rows > other_lines ? space.rows - other_lines : 0;
  if (live.ranks.size() > rows && rows > 0) --rows;  // for the number of those that do not fit
  const auto ranks = shown(live, rows);
  for (const LiveRank* rank : ranks) {
    add(row(*rank, phases, node_width, now_width) + (gpus ? gpu_cells(*rank) : ""), colour(*rank, live));
  }
  if (ranks.size() < live.ranks.size()) {
    add(fmt::format("({} more ranks with a shorter own time)", live.ranks.size() - ranks.size()), kDim);
  }
  for (const std::string& note : live.notes) add("(" + note + ")", kDim);
  return lines;
}

nlohmann::json to_json(const Live& live) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const LiveRank& rank : live.ranks) {
    nlohmann::json shares;
    for (std::size_t i = 0; i < kPhases; ++i) shares[std::string(record::kPhaseNames[i])] = rank.shares[i];
    ranks.push_back(
        {{"rank", rank.rank},
         {"node", rank.node},
         {"state", rank.state},
         {"steps", rank.steps},
         {"step_ms", rank.step_ms},
         {"own_ms", rank.own_ms},
         {"phase_shares", std::move(shares)},
         {"tokens_per_second", rank.tokens_per_second},
         {"comm_wait_ms", report::or_null(rank.wait_ms)},
         {"late_rank", report::or_null(rank.late_rank)},
         {"cpus", report::or_null(rank.cpus)},
         {"memory_bytes", rank.cpus ? nlohmann::json(rank.memory_bytes) : nlohmann::json()},
         {"gpu_busy_percent", rank.gpu ? nlohmann::json(rank.gpu->busy_percent) : nlohmann::json()},
         {"gpu_memory_bytes", rank.gpu ? nlohmann::json(rank.gpu->memory_bytes) : nlohmann::json()},
         {"gpu_sm_mhz", rank.gpu ? nlohmann::json(rank.gpu->sm_mhz) : nlohmann::json()},
         {"phase", rank.now ? nlohmann::json(record::name(*rank.now)) : nlohmann::json()},
         {"phase_seconds", rank.now ? nlohmann::json(rank.now_seconds) : nlohmann::json()},
         {"last_step_seconds", report::or_null(rank.idle_seconds)}});
  }
  nlohmann::json json = {{"job", live.job.job_id},      {"step", live.job.step_id},
                         {"program", live.job.program}, {"size", live.job.size},
                         {"state", live.state},         {"tokens_per_second", live.tokens_per_second},
                         {"ranks", std::move(ranks)},   {"notes", live.notes},
                         {"bound_by", nullptr},         {"bound_share", nullptr}};
  if (live.verdict) {
    json["bound_by"] = report::kBoundNames.at(static_cast<std::size_t>(live.verdict->bound));
    json["bound_share"] = live.verdict->share(live.verdict->bound);
  }
  return json;
}

}  // namespace lockstep::top
