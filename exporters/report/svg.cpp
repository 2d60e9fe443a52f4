#include "exporters/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::report {

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
        safe += (c >= 0 && c < ' ') ? ' ' : c;
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
