#include "exporters/report/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "common/statistics.h"

namespace lockstep::report {
namespace {

using record::Phase;
using record::Snapshot;

static_assert(kColours.size() == record::kPhases);
constexpr std::size_t kMaxRows = 64;
constexpr std::size_t kMaxColumns = 160;
constexpr double kLeft = 110;
constexpr double kWidth = 860;
constexpr double kRight = 70;
constexpr double kTotal = kLeft + kWidth + kRight;

std::string rank_title(const Snapshot& rank) {
  std::string node = rank.identity.node;
  if (node.size() > 10) node = node.substr(0, 9) + "…";
  return escape(fmt::format("rank {} · {}", rank.identity.rank, node));
}

// If there are very many ranks, shows the slowest, because a reader looks for those.
std::vector<const Snapshot*> shown(const Run& run) {
  std::vector<const Snapshot*> ranks;
  for (const Snapshot& rank : run.ranks) ranks.push_back(&rank);
  if (ranks.size() <= kMaxRows) return ranks;
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const auto* a, const auto* b) { return own_milliseconds(*a) > own_milliseconds(*b); });
  ranks.resize(kMaxRows);
  return ranks;
}

std::string slowest_only(const Run& run) {
  if (run.ranks.size() <= kMaxRows) return "";
  return fmt::format(" (the {} slowest of {} ranks)", kMaxRows, run.ranks.size());
}

std::string legend(double y) {
  std::string svg;
  double x = kLeft;
  for (std::size_t i = 0; i < record::kPhases; ++i) {
    const std::string name(kPhaseTitles[i]);
    svg += fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="12" height="12" fill="{}"/>)", x, y - 10,
                       kColours[i]);
    svg += text_at(x + 17, y, "start", name);
    x += 34 + 7.2 * static_cast<double>(name.size());
  }
  return svg;
}

// Blue: faster than the median rank; red: slower; the page's style has the colours. Full colour at 25 %.
std::string heat(double ratio) {
  const double strength = std::clamp((ratio - 1) / 0.25, -1.0, 1.0);
  return fmt::format(R"(class="{}" fill-opacity="{:.2f}")", strength < 0 ? "fast" : "slow",
                     std::abs(strength));
}

struct Cell {
  double own_ms = 0;
  double ratio = 0;
  std::size_t steps = 0;
};

// Median own time of all ranks in each step that is still in the records.
std::map<std::uint64_t, double> step_medians(const Run& run) {
  std::map<std::uint64_t, std::vector<double>> own;
  for (const Snapshot& rank : run.ranks) {
    for (const record::Step& step : rank.steps) own[step.index].push_back(static_cast<double>(step.own_ns()));
  }
  std::map<std::uint64_t, double> medians;
  for (auto& [index, values] : own) medians[index] = median(std::move(values));
  return medians;
}

std::vector<Cell> row_of(const Snapshot& rank, const std::map<std::uint64_t, double>& medians,
                         std::uint64_t first, std::uint64_t group, std::size_t columns) {
  std::vector<Cell> row(columns);
  for (const record::Step& step : rank.steps) {
    const double middle = medians.at(step.index);
    Cell& cell = row[(step.index - first) / group];
    cell.own_ms += static_cast<double>(step.own_ns()) * 1e-6;
    cell.ratio += middle > 0 ? static_cast<double>(step.own_ns()) / middle : 1;
    ++cell.steps;
  }
  for (Cell& cell : row) {
    if (cell.steps == 0) continue;
    cell.own_ms /= static_cast<double>(cell.steps);
    cell.ratio /= static_cast<double>(cell.steps);
  }
  return row;
}

std::string heat_legend(double y) {
  std::string svg = text_at(kLeft, y, "start", "own time relative to the median rank:");
  double x = kLeft + 275;
  for (int percent = -25; percent <= 25; percent += 5) {
    svg += rectangle(x, y - 10, 26, 12, R"(class="equal")") + "/>";
    svg += rectangle(x, y - 10, 26, 12, heat(1 + percent / 100.0)) + "/>";
    if (percent % 25 == 0) {
      svg += text_at(x + 13, y + 16, "middle", percent == 0 ? "equal" : fmt::format("{:+d} %", percent));
    }
    x += 26;
  }
  return svg;
}

}  // namespace

std::string phase_bars(const Run& run) {
  const auto ranks = shown(run);
  double longest = 0;
  for (const auto* rank : ranks) longest = std::max(longest, step_milliseconds(*rank));
  if (longest == 0) return "";
  const double row = ranks.size() <= 16 ? 26 : 15;
  const double top = 34;
  const double bottom = top + row * static_cast<double>(ranks.size());
  const double scale = kWidth / longest;
  std::string svg = open_svg(kTotal, bottom + 42, "Milliseconds per step by phase, for each rank");
  svg += legend(16);
  const double distance = mark_distance(longest);
  for (int i = 0; i * distance <= longest * 1.0001; ++i) {
    const double mark = i * distance;
    const double x = kLeft + mark * scale;
    svg += fmt::format(R"(<line x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}" class="grid"/>)", x,
                       top - 4, bottom + 4);
    svg += text_at(x, bottom + 18, "middle", fmt::format("{:g}", mark));
  }
  svg += text_at(kLeft + kWidth / 2, bottom + 36, "middle", "milliseconds per step" + slowest_only(run));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Snapshot& rank = *ranks[i];
    const double y = top + row * static_cast<double>(i);
    svg += text_at(kLeft - 8, y + row / 2 + 4, "end", rank_title(rank));
    double x = kLeft;
    for (std::size_t phase = 0; phase < record::kPhases; ++phase) {
      const double ms = phase_milliseconds(rank, static_cast<Phase>(phase));
      if (ms <= 0) continue;
      svg += rectangle(x, y + 2, ms * scale, row - 4, fmt::format(R"(fill="{}")", kColours[phase]));
      svg += fmt::format("><title>{}: {} {:.2f} ms, {:.1f} % of the step</title></rect>", rank_title(rank),
                         kPhaseTitles[phase], ms, 100 * ms / step_milliseconds(rank));
      x += ms * scale;
    }
    svg += text_at(x + 6, y + row / 2 + 4, "start", fmt::format("{:.1f}", step_milliseconds(rank)));
  }
  return svg + "</svg>";
}

std::string step_heatmap(const Run& run) {
  const auto medians = step_medians(run);
  if (medians.empty()) return "";
  const std::uint64_t first = medians.begin()->first;
  const std::uint64_t count = medians.rbegin()->first - first + 1;
  const std::uint64_t group = (count - 1) / kMaxColumns + 1;
  const auto columns = static_cast<std::size_t>((count - 1) / group + 1);
  const auto ranks = shown(run);
  const double row = ranks.size() <= 16 ? 22 : 11;
  const double cell = kWidth / static_cast<double>(columns);
  const double top = 44;
  const double bottom = top + row * static_cast<double>(ranks.size());
  std::string svg = open_svg(kTotal, bottom + 42, "Own time of each rank in each of the last steps");
  svg += heat_legend(14);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const double y = top + row * static_cast<double>(i);
    svg += text_at(kLeft - 8, y + row / 2 + 4, "end", rank_title(*ranks[i]));
    const auto cells = row_of(*ranks[i], medians, first, group, columns);
    svg += rectangle(kLeft, y + 1, kWidth, row - 2, R"(class="equal")") + "/>";
    for (std::size_t column = 0; column < columns; ++column) {
      const double x = kLeft + cell * static_cast<double>(column);
      if (cells[column].steps == 0) {
        svg += rectangle(x, y + 1, cell, row - 2, R"(class="gap")") + "/>";
        continue;
      }
      const std::uint64_t step = first + column * group;
      const std::string steps =
          group == 1 ? fmt::format("step {}", step) : fmt::format("steps {}–{}", step, step + group - 1);
      svg += rectangle(x, y + 1, cell, row - 2, heat(cells[column].ratio));
      svg += fmt::format("><title>{}, {}: works {:.2f} ms, {:+.1f} %</title></rect>", rank_title(*ranks[i]),
                         steps, cells[column].own_ms, 100 * (cells[column].ratio - 1));
    }
  }
  const double distance = std::max(1.0, mark_distance(static_cast<double>(count)));
  const double first_mark = std::ceil(static_cast<double>(first) / distance) * distance;
  const double end = static_cast<double>(first) + static_cast<double>(count);
  for (int i = 0; first_mark + i * distance < end; ++i) {
    const double mark = first_mark + i * distance;
    const double x = kLeft + (mark - static_cast<double>(first)) / static_cast<double>(group) * cell;
    svg += text_at(x, bottom + 16, "middle", fmt::format("{:.0f}", mark));
  }
  svg += text_at(kLeft + kWidth / 2, bottom + 36, "middle", "step" + slowest_only(run));
  return svg + "</svg>";
}

std::string escape(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return safe;
}

double mark_distance(double maximum) {
  const double rough = std::max(maximum, 1e-6) / 8;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= rough) return step * power;
  }
  return 10 * power;
}

std::string open_svg(double width, double height, const std::string& label) {
  return fmt::format(R"(<svg viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">)", width, height,
                     escape(label));
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* extra) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}"{}>{}</text>)", x, y, anchor, extra,
                     text);
}

std::string rectangle(double x, double y, double width, double height, const std::string& look) {
  return fmt::format(R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" {})", x, y, width, height,
                     look);
}

}  // namespace lockstep::report
