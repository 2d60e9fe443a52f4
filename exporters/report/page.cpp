#include "exporters/report/page.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/tool.h"
#include "common/units.h"
#include "exporters/report/advice.h"
#include "exporters/report/picture.h"
#include "exporters/report/rank_tables.h"
#include "exporters/report/text.h"
#include "exporters/report/verdict.h"

namespace lockstep::report {
namespace {

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
