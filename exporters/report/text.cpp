#include "exporters/report/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "common/leaf/text.h"
#include "common/median.h"
#include "common/process.h"
#include "common/tool.h"
#include "common/units.h"
#include "exporters/report/advice.h"
#include "exporters/report/rank_tables.h"
#include "exporters/report/verdict.h"

namespace lockstep::report {
namespace {

using record::Phase;
using record::Snapshot;

std::string staging_line(const StagingRecord& staging) {
  const std::size_t hits = staging.hits();
  const std::size_t misses = staging.sources.size() - hits;
  const char* result = misses == 0 ? "hit" : (hits == 0 ? "miss" : "in part");
  if (staging.state != StagingState::done) result = name(staging.state);
  return fmt::format("  {:<12} {:<8} {:>10} in {:<9} {:>10} read from the source, {} from peers\n",
                     staging.node, result, format_bytes(staging.done()), format_seconds(staging.seconds()),
                     format_bytes(staging.from_source()), format_bytes(staging.from_peers()));
}

}  // namespace

std::string state(const Run& run) {
  const auto any = [&](auto test) { return std::any_of(run.ranks.begin(), run.ranks.end(), test); };
  if (any([](const Snapshot& rank) { return !rank.alive && rank.finished_unix_ns == 0; })) return "died";
  if (any([](const Snapshot& rank) { return rank.alive; })) return "running";
  return "finished";
}

double end_unix(const Run& run) {
  std::int64_t end = run.ranks.front().start_unix_ns;
  for (const Snapshot& rank : run.ranks)
    end = std::max(end, rank.finished_unix_ns != 0 ? rank.finished_unix_ns : rank.last_unix_ns());
  return static_cast<double>(end) * 1e-9;
}

Circumstances circumstances(const Run& run) {
  std::int64_t begin = run.ranks.front().start_unix_ns;
  for (const Snapshot& rank : run.ranks) begin = std::min(begin, rank.start_unix_ns);
  const std::time_t seconds = begin / 1'000'000'000;
  std::tm utc{};
  std::string started = "-";
  if (begin > 0 && ::gmtime_r(&seconds, &utc) != nullptr) {
    started = fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC", utc.tm_year + 1900, utc.tm_mon + 1,
                          utc.tm_mday, utc.tm_hour, utc.tm_min);
  }
  const double started_unix = static_cast<double>(begin) * 1e-9;
  return {.started = started,
          .started_unix = started_unix,
          .seconds = end_unix(run) - started_unix,
          .user = printable(user_name(run.ranks.front().owner))};
}

std::string title(const Run& run) {
  const record::Identity& first = run.ranks.front().identity;
  std::uint64_t steps = 0;
  for (const Snapshot& rank : run.ranks) steps = std::max(steps, rank.counters.steps);
  return fmt::format("{} · job {}.{} · {} rank{} · {} step{}",
                     first.program.empty() ? "training" : first.program, first.job_id, first.step_id,
                     first.size, first.size == 1 ? "" : "s", steps, steps == 1 ? "" : "s");
}

std::string waiting(const Snapshot& rank) {
  return rank.counters.communication_measured()
             ? fmt::format("{:.2f}", milliseconds_per_step(rank, rank.counters.comm_wait_ns))
             : "-";
}

std::string to_text(const Run& run) {
  std::size_t node_width = 4;
  for (const Snapshot& rank : run.ranks) node_width = std::max(node_width, rank.identity.node.size());
  const Diagnosis found = diagnose(run);
  std::string text = fmt::format("{} · {}", title(run), state(run));
  if (const double speed = tokens_per_second(run); speed > 0)
    text += fmt::format(" · {} tokens/s", format_count(speed));
  text += "\n";
  for (const std::string& line : verdict_lines(run, found)) text += line + "\n";
  text += "\nmilliseconds per step:\n";
  text += fmt::format("{:>4}  {:<{}} {:>6} {:>9}", "rank", "node", node_width, "steps", "step_ms");
  for (const auto& phase : record::kPhaseNames)
    text += fmt::format(" {:>{}}", phase, std::max<std::size_t>(phase.size(), 8));
  text += fmt::format(" {:>9} {:>9}\n", "comm_wait", "tokens/s");
  for (const Snapshot& rank : run.ranks) {
    text += fmt::format("{:>4}  {:<{}} {:>6} {:>9.2f}", rank.identity.rank, rank.identity.node, node_width,
                        rank.counters.steps, step_milliseconds(rank));
    for (std::size_t i = 0; i < record::kPhases; ++i) {
      text += fmt::format(" {:>{}.2f}", phase_milliseconds(rank, static_cast<Phase>(i)),
                          std::max<std::size_t>(record::kPhaseNames[i].size(), 8));
    }
    text += fmt::format(" {:>9} {:>9}\n", waiting(rank), format_count(tokens_per_second(rank)));
  }
  text += straggler_text(found.late);
  if (found.balance) text += balance_line(*found.balance) + "\n";
  text += resource_text(run);
  if (run.profile) text += "\n" + profile_text(*run.profile);
  if (!run.staging.empty()) text += "\nstaging:\n";
  for (const auto& staging : run.staging) text += staging_line(staging);
  text += "\n";
  for (const std::string& line : advise(run, found)) text += "- " + line + "\n";
  for (const std::string& note : run.notes) text += "(" + note + ")\n";
  return text;
}

namespace {

using Figures = std::vector<std::pair<std::string, double>>;  // in the order of the table

template <typename Figure>
double mean(const Run& run, const Figure& figure) {
  double sum = 0;
  for (const Snapshot& rank : run.ranks) sum += figure(rank);
  return sum / static_cast<double>(run.ranks.size());
}

Figures figures_of(const Run& run) {
  Figures figures;
  figures.emplace_back("tokens_per_second", tokens_per_second(run));
  figures.emplace_back("step_ms", mean(run, step_milliseconds));
  for (std::size_t i = 0; i < record::kPhases; ++i) {
    const auto phase = static_cast<record::Phase>(i);
    figures.emplace_back(std::string(record::kPhaseNames[i]) + "_ms",
                         mean(run, [&](const Snapshot& rank) { return phase_milliseconds(rank, phase); }));
  }
  std::vector<double> own;
  for (const Snapshot& rank : run.ranks) own.push_back(own_milliseconds(rank));
  const double middle = median(own);
  figures.emplace_back("slowest_to_median",
                       middle > 0 ? *std::max_element(own.begin(), own.end()) / middle : 0);
  double tokens = 0;
  double padding = 0;
  for (const Snapshot& rank : run.ranks) {
    tokens += static_cast<double>(rank.counters.tokens);
    padding += static_cast<double>(rank.counters.padding);
  }
  figures.emplace_back("padding_share", tokens + padding > 0 ? padding / (tokens + padding) : 0);
  return figures;
}

nlohmann::json object_of(const Figures& figures) {
  nlohmann::json object;
  for (const auto& [name, value] : figures) object[name] = value;
  return object;
}

// null if it was not measured.
nlohmann::json communication(const Snapshot& rank, std::uint64_t ns) {
  if (!rank.counters.communication_measured()) return nullptr;
  return milliseconds_per_step(rank, ns);
}

}  // namespace

nlohmann::json to_json(const Run& run) {
  const record::Identity& first = run.ranks.front().identity;
  nlohmann::json ranks = nlohmann::json::array();
  for (const Snapshot& rank : run.ranks) {
    nlohmann::json phases;
    for (std::size_t i = 0; i < record::kPhases; ++i) {
      phases[std::string(record::kPhaseNames[i])] = phase_milliseconds(rank, static_cast<Phase>(i));
    }
    ranks.push_back({{"rank", rank.identity.rank},
                     {"node", rank.identity.node},
                     {"steps", rank.counters.steps},
                     {"step_ms", step_milliseconds(rank)},
                     {"phases_ms", std::move(phases)},
                     {"own_ms", own_milliseconds(rank)},
                     {"comm_transfer_ms", communication(rank, rank.counters.comm_transfer_ns)},
                     {"comm_wait_ms", communication(rank, rank.counters.comm_wait_ns)},
                     {"tokens", rank.counters.tokens},
                     {"padding", rank.counters.padding},
                     {"tokens_per_second", tokens_per_second(rank)},
                     {"alive", rank.alive},
                     {"finished", rank.finished_unix_ns != 0}});
    ranks.back().update(resource_json(rank));
  }
  nlohmann::json staging = nlohmann::json::array();
  for (const auto& node : run.staging) {
    staging.push_back({{"node", node.node},
                       {"state", name(node.state)},
                       {"bytes", node.bytes()},
                       {"from_source", node.from_source()},
                       {"from_peers", node.from_peers()},
                       {"hits", node.hits()},
                       {"misses", node.sources.size() - node.hits()},
                       {"seconds", node.seconds()}});
  }
  const Diagnosis found = diagnose(run);
  const Circumstances when = circumstances(run);
  nlohmann::json rules = nlohmann::json::array();
  for (const Advice& advice : found.advice) {
    rules.push_back({{"rule", advice.rule}, {"finding", advice.finding}, {"remedy", advice.remedy}});
  }
  nlohmann::json json = {{"job", first.job_id},          {"step", first.step_id},
                         {"program", first.program},     {"size", first.size},
                         {"state", state(run)},          {"started", when.started},
                         {"seconds", when.seconds},      {"user", when.user},
                         {"version", version()},         {"tokens_per_second", tokens_per_second(run)},
                         {"ranks", std::move(ranks)},    {"staging", std::move(staging)},
                         {"advice", advise(run, found)}, {"rules", std::move(rules)},
                         {"notes", run.notes},           {"stragglers", straggler_json(found.late)},
                         {"unreadable", run.unreadable}, {"balance", balance_json(found.balance)}};
  json["started_unix"] = when.started_unix;
  json["profile"] = run.profile ? run.profile->json : nlohmann::json();
  json["restarts"] = restarts_json(run.restarts);
  json.update(verdict_json(run, found));
  return json;
}

std::string comparison_text(const Run& run, const Run& baseline) {
  const Figures now = figures_of(run);
  const Figures before = figures_of(baseline);
  std::string text = fmt::format("{}\ncompared with {}\n\n{:<18} {:>12} {:>12} {:>9}\n", title(run),
                                 title(baseline), "mean over ranks", "run", "baseline", "change");
  for (std::size_t i = 0; i < now.size(); ++i) {
    const double change = 100 * (now[i].second / before[i].second - 1);
    text += fmt::format("{:<18} {:>12.3f} {:>12.3f} {:>9}\n", now[i].first, now[i].second, before[i].second,
                        before[i].second == 0 ? "-" : fmt::format("{:+.1f} %", change));
  }
  return text;
}

nlohmann::json comparison_json(const Run& run, const Run& baseline) {
  const Figures now = figures_of(run);
  const Figures before = figures_of(baseline);
  nlohmann::json change;
  for (std::size_t i = 0; i < now.size(); ++i) {
    change[now[i].first] =
        before[i].second == 0 ? nlohmann::json() : nlohmann::json(now[i].second / before[i].second - 1);
  }
  return {{"run", object_of(now)}, {"baseline", object_of(before)}, {"change", std::move(change)}};
}

}  // namespace lockstep::report
