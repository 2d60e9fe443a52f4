// Draws a page of panels from Prometheus' answers, as lockstep-report draws its page, for the pictures in the documents.
//
//   draw_panels <answers.json >page.html
//
// The answers come from quickstart_pages.py: {"title", "state", "panels": [{"title", "kind", "w", "unit", ...}]}, where `w` of
// 24 columns is the width, and a panel has, by its kind,
//   stat        "text"
//   table       "columns": names, "rows": lists of texts
//   timeseries  "series": [{"name", "points": [[seconds, value], ...]}], "stacked"
//   heatmap     "series", from the lowest to the highest bucket; a value is a number of occurrences

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "exporters/report/picture.h"
#include "exporters/report/report.h"

namespace {

using lockstep::report::escape;
using lockstep::report::kColours;
using lockstep::report::rectangle;
using lockstep::report::text_at;
using nlohmann::json;

constexpr double kLeft = 70;
constexpr double kTop = 14;
constexpr double kHeight = 190;

// Where a time and a value lie in a picture.
struct Axes {
  double begin = 0;
  double end = 1;
  double maximum = 0;
  double width = 0;

  double x(double seconds) const { return kLeft + (seconds - begin) / (end - begin) * width; }
  double y(double value) const { return kTop + kHeight * (1 - value / maximum); }
};

Axes axes_of(const json& panel) {
  Axes axes{.begin = 1e300, .end = -1e300, .width = panel.at("w").get<double>() * 45 - 100};
  std::map<double, double> sums;
  for (const json& series : panel.at("series")) {
    for (const json& point : series.at("points")) {
      const double seconds = point.at(0);
      axes.begin = std::min(axes.begin, seconds);
      axes.end = std::max(axes.end, seconds);
      sums[seconds] += point.at(1).get<double>();
      axes.maximum =
          std::max(axes.maximum, panel.value("stacked", false) ? sums[seconds] : point.at(1).get<double>());
    }
  }
  if (axes.end <= axes.begin) axes.end = axes.begin + 1;
  if (axes.maximum <= 0) axes.maximum = 1;
  return axes;
}

std::string marks(const Axes& axes, const std::string& unit) {
  std::string svg;
  const double distance = lockstep::report::mark_distance(axes.maximum * 2);  // at most four
  for (int i = 0; i * distance <= axes.maximum * 1.0001; ++i) {
    const double y = axes.y(i * distance);
    svg += fmt::format(R"(<line x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}" class="grid"/>)", kLeft,
                       kLeft + axes.width, y, y);
    svg += text_at(kLeft - 8, y + 4, "end", escape(fmt::format("{:g}{}", i * distance, unit)));
  }
  const double seconds = lockstep::report::mark_distance(axes.end - axes.begin);
  for (int i = 0; axes.begin + i * seconds <= axes.end; ++i)
    svg += text_at(axes.x(axes.begin + i * seconds), kTop + kHeight + 18, "middle",
                   fmt::format("{:g} s", i * seconds));
  return svg;
}

std::string lines(const json& panel, const Axes& axes) {
  std::string svg = marks(axes, panel.at("unit"));
  std::map<double, double> below;
  double legend = kLeft;
  double line = kTop + kHeight + 40;
  std::size_t number = 0;
  for (const json& series : panel.at("series")) {
    const std::string colour = series.value("colour", std::string(kColours.at(number++ % kColours.size())));
    std::string upper;
    std::string lower;
    for (const json& point : series.at("points")) {
      const double seconds = point.at(0);
      const double base = panel.value("stacked", false) ? below[seconds] : 0;
      const double value = base + point.at(1).get<double>();
      upper += fmt::format("{:.1f},{:.1f} ", axes.x(seconds), axes.y(value));
      lower = fmt::format("{:.1f},{:.1f} ", axes.x(seconds), axes.y(base)) + lower;
      below[seconds] = value;
    }
    svg += panel.value("stacked", false)
               ? fmt::format(R"(<polygon points="{}{}" fill="{}"/>)", upper, lower, colour)
               : fmt::format(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>)", upper,
                             colour);
    const std::string name = series.at("name");
    const double width = 34 + 7.2 * static_cast<double>(name.size());
    if (legend + width > kLeft + axes.width && legend > kLeft) {
      legend = kLeft;
      line += 18;
    }
    svg += rectangle(legend, line - 10, 12, 12, fmt::format(R"(fill="{}")", colour)) + "/>" +
           text_at(legend + 17, line, "start", escape(name));
    legend += width;
  }
  return lockstep::report::open_svg(kLeft + axes.width + 30, line + 8, panel.at("title")) + svg + "</svg>";
}

std::string heat(const json& panel, const Axes& axes) {
  const auto& all = panel.at("series");
  const double row = kHeight / static_cast<double>(std::max<std::size_t>(1, all.size()));
  std::string svg;
  std::size_t number = 0;
  for (const json& series : all) {
    const double y = kTop + kHeight - row * static_cast<double>(++number);
    svg += text_at(kLeft - 8, y + row / 2 + 4, "end", escape(series.at("name").get<std::string>()));
    const auto& points = series.at("points");
    const double cell = axes.width / static_cast<double>(std::max<std::size_t>(1, points.size()));
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double value = points.at(i).at(1);
      if (value <= 0) continue;
      svg += rectangle(kLeft + cell * static_cast<double>(i), y, cell, row - 1,
                       fmt::format(R"(fill="{}" fill-opacity="{:.2f}")", kColours[3],
                                   0.15 + 0.85 * value / axes.maximum)) +
             "/>";
    }
  }
  svg += text_at(kLeft + axes.width / 2, kTop + kHeight + 18, "middle", "time");
  return lockstep::report::open_svg(kLeft + axes.width + 30, kTop + kHeight + 30, panel.at("title")) + svg +
         "</svg>";
}

std::string table(const json& panel) {
  std::string html = "<table><tr>";
  for (const json& column : panel.at("columns")) html += "<th>" + escape(column.get<std::string>()) + "</th>";
  for (const json& row : panel.at("rows")) {
    html += "</tr>\n<tr>";
    for (const json& cell : row) html += "<td>" + escape(cell.get<std::string>()) + "</td>";
  }
  return "<div class=\"scroll\">" + html + "</tr></table></div>";
}

std::string content(const json& panel) {
  const std::string kind = panel.at("kind");
  if (kind == "stat")
    return "<div class=\"numbers\"><div><b>" + escape(panel.at("text").get<std::string>()) +
           "</b></div></div>";
  if (kind == "table") return table(panel);
  return kind == "heatmap" ? heat(panel, axes_of(panel)) : lines(panel, axes_of(panel));
}

}  // namespace

int main() try {
  const json page = json::parse(std::cin);
  std::cout
      << lockstep::report::page_begin(page.at("title"), page.at("state"))
      << "<style>svg { min-width: 0; } .panels { display: grid; grid-template-columns: repeat(24, 1fr); gap: 0 12px; }</style>\n"
      << "<div class=\"panels\">\n";
  for (const json& panel : page.at("panels")) {
    std::cout << fmt::format("<div style=\"grid-column: span {}; min-width: 0\"><h2>{}</h2>{}</div>\n",
                             panel.at("w").get<int>(), escape(panel.at("title").get<std::string>()),
                             content(panel));
  }
  std::cout << "</div></body></html>\n";
  return 0;
} catch (const std::exception& error) {
  std::cerr << "draw_panels: " << error.what() << "\n";
  return 1;
}
