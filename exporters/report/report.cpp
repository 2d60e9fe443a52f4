#include "exporters/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/leaf/text.h"
#include "common/process.h"
#include "common/statistics.h"
#include "common/tool.h"
#include "common/units.h"
#include "exporters/report/diagnosis.h"
#include "exporters/report/picture.h"

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
                     staging.node, result, format_bytes(staging.sum(&StagedSource::done)),
                     format_seconds(staging.sum(&StagedSource::seconds)),
                     format_bytes(staging.sum(&StagedSource::from_source)),
                     format_bytes(staging.sum(&StagedSource::from_peers)));
}

using record::Phase;
using record::Snapshot;

constexpr const char* kStyle = R"(
  :root { color-scheme: light dark; --text: #1a1a1a; --quiet: #444; --back: #fff; --box: #f4f6f8; --line: #d9d9d9;
          --equal: #f0f0f0; --slow: #b2182b; --fast: #2166ac; }
  @media (prefers-color-scheme: dark) {
    :root { --text: #e8e8e8; --quiet: #b5bac1; --back: #16181b; --box: #22262b; --line: #3c4148; --equal: #2c3036;
            --slow: #ff5f6d; --fast: #5fa8f5; } }
  body { font: 15px/1.45 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--text); background: var(--back);
         max-width: 1160px; margin: 28px auto; padding: 0 20px; overflow-wrap: anywhere; }
  h1 { font-size: 22px; margin: 0 0 2px; } h2 { font-size: 16px; margin: 30px 0 8px; }
  .state { color: var(--quiet); margin: 0; }
  .numbers { display: flex; flex-wrap: wrap; gap: 36px; margin: 18px 0 4px; padding: 0; }
  .numbers div { min-width: 110px; } .numbers b { display: block; font-size: 24px; font-weight: 600; }
  .numbers span { color: var(--quiet); font-size: 13px; }
  .advice { background: var(--box); border-left: 4px solid #0072B2; margin: 18px 0; padding: 10px 16px; }
  .advice p { margin: 4px 0; }
  .scroll { overflow-x: auto; }
  svg { display: block; width: 100%; min-width: 820px; height: auto; }
  svg text { font-size: 12px; fill: var(--text); } .grid { stroke: var(--line); }
  .slow { fill: var(--slow); } .fast { fill: var(--fast); } .equal { fill: var(--equal); } .gap { fill: var(--back); }
  .swipe { display: none; }
  table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; white-space: nowrap; }
  th, td { text-align: right; padding: 3px 7px; border-bottom: 1px solid var(--line); }
  th { overflow-wrap: normal; font-weight: 600; border-bottom-color: #888; white-space: normal; vertical-align: bottom; max-width: 110px; }
  td:first-child, th:first-child { position: sticky; left: 0; background: var(--back); } td.name, th.name { text-align: left; }
  .note { color: var(--quiet); font-size: 13px; }
  @media (max-width: 600px) { body { margin: 14px auto; padding: 0 12px; } .numbers { gap: 14px 24px; } .swipe { display: block; } }
)";

// On narrow screens only the wide part scrolls sideways, not the page.
std::string in_scroll(const std::string& wide) {
  return "<div class=\"scroll\">" + wide + "</div>";
}

std::string number(const std::string& value, const std::string& meaning) {
  return fmt::format("<div><b>{}</b><span>{}</span></div>", escape(value), escape(meaning));
}

std::string numbers(const Run& run) {
  double step = 0;
  for (const Snapshot& rank : run.ranks) step = std::max(step, step_milliseconds(rank));
  const auto percent = [&](Phase phase) {  // of the step, mean over the ranks
    double sum = 0;
    for (const Snapshot& rank : run.ranks) {
      const double own_step = step_milliseconds(rank);
      if (own_step > 0) sum += 100 * phase_milliseconds(rank, phase) / own_step;
    }
    return fmt::format("{:.1f} %", sum / static_cast<double>(run.ranks.size()));
  };
  const double speed = tokens_per_second(run);
  return "<div class=\"numbers\">" + (speed > 0 ? number(format_count(speed), "tokens per second") : "") +
         number(format_seconds(step * 1e-3), "per step, mean of the slowest rank") +
         number(percent(Phase::data_wait), "of the step spent waiting for data") +
         number(percent(Phase::comm_exposed), "of the step spent waiting for communication") + "</div>";
}

std::string circumstances_line(const Run& run) {
  const Circumstances when = circumstances(run);
  return fmt::format("{} · began {} · {} {} · user {} · lockstep {}", state(run), when.started,
                     state(run) == "running" ? "last step after" : "lasted", format_seconds(when.seconds),
                     when.user, version());
}

std::string table(const Run& run) {
  std::string html =
      "<table id=\"numbers\"><tr><th>rank</th><th class=\"name\">node</th><th>steps</th><th>whole step</th>";
  for (const char* phase : kPhaseTitles) html += fmt::format("<th>{}</th>", phase);
  html += "<th>waits for later ranks</th><th>tokens per second</th></tr>\n";
  for (const Snapshot& rank : run.ranks) {
    html +=
        fmt::format("<tr><td>{}</td><td class=\"name\">{}</td><td>{}</td><td>{:.2f}</td>", rank.identity.rank,
                    escape(rank.identity.node), rank.counters.steps, step_milliseconds(rank));
    for (std::size_t i = 0; i < record::kPhases; ++i) {
      html += fmt::format("<td>{:.2f}</td>", phase_milliseconds(rank, static_cast<Phase>(i)));
    }
    html +=
        fmt::format("<td>{}</td><td>{}</td></tr>\n", waiting(rank), format_count(tokens_per_second(rank)));
  }
  return in_scroll(html + "</table>");
}

std::string staging(const Run& run) {
  if (run.staging.empty()) return "";
  std::string html =
      "<table><tr><th class=\"name\">node</th><th class=\"name\">source</th><th>in the cache?</th><th>size</th><th>read from the source</th><th>from other nodes</th><th>time</th></tr>\n";
  for (const auto& node : run.staging) {
    const std::string state = name(node.state);
    if (node.sources.empty()) {
      html += fmt::format(
          "<tr><td class=\"name\">{}</td><td></td><td>{}</td><td></td><td></td><td></td><td></td></tr>\n",
          escape(node.node), state);
    }
    for (const auto& source : node.sources) {
      const std::string cache = node.state == StagingState::done ? (source.hit ? "hit" : "miss") : state;
      html += fmt::format(
          "<tr><td class=\"name\">{}</td><td class=\"name\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
          escape(node.node), escape(source.source), cache, format_bytes(source.bytes),
          format_bytes(source.from_source), format_bytes(source.from_peers), format_seconds(source.seconds));
    }
  }
  return "<h2>Staging</h2>" + in_scroll(html + "</table>");
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
                       {"bytes", node.sum(&StagedSource::bytes)},
                       {"from_source", node.sum(&StagedSource::from_source)},
                       {"from_peers", node.sum(&StagedSource::from_peers)},
                       {"hits", node.hits()},
                       {"misses", node.sources.size() - node.hits()},
                       {"seconds", node.sum(&StagedSource::seconds)}});
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

std::string page_begin(const std::string& title, const std::string& state) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{0}</title><style>{1}</style></head><body>\n"
      "<h1>{0}</h1><p class=\"state\">{2}</p>\n",
      escape(title), kStyle, escape(state));
}

std::string to_html(const Run& run) {
  std::string html = page_begin(title(run), circumstances_line(run));
  html +=
      "<p class=\"note swipe\">Pictures and tables are wider than this screen: swipe them sideways.</p>\n";
  const Diagnosis found = diagnose(run);
  html += numbers(run) + "<div class=\"advice\">";
  const auto verdict = verdict_lines(run, found);
  for (std::size_t i = 0; i < verdict.size(); ++i) {
    const std::string line = escape(verdict[i]);
    html += "<p>" + (i == 0 ? "<b>" + line + "</b>" : line) + "</p>";
  }
  for (const std::string& line : advise(run, found)) html += "<p>" + escape(line) + "</p>";
  html += "</div>\n<h2>Where each rank’s step time goes</h2>\n" + in_scroll(phase_bars(run));
  html += "\n<h2>Slow ranks, step by step</h2>\n" + in_scroll(step_heatmap(run));
  html +=
      "\n<p class=\"note\">Own time is the step without communication that backward did not hide, because that is where a rank waits for others. A red row is a slow rank; scattered red is uneven work. Point at an area to see its numbers, which the tables below have too.</p>\n";
  html += straggler_html(found.late);
  if (found.balance) html += "<p class=\"note\">" + escape(balance_line(*found.balance)) + "</p>";
  html +=
      staging(run) +
      "\n<h2>Numbers</h2><p class=\"note\">Milliseconds per step: means over all steps. The parts from waiting for data to other add up to the whole step; waiting for later ranks is part of communication, hidden or not.</p>" +
      table(run) + resource_html(run);
  if (run.profile)
    html += "<h2>Profile</h2>" + in_scroll("<pre>" + escape(profile_text(*run.profile)) + "</pre>");
  for (const std::string& note : run.notes) html += "<p class=\"note\">" + escape(note) + "</p>";
  return html + "\n</body></html>\n";
}

}  // namespace lockstep::report
