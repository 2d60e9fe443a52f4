#include "exporters/node/metrics_page.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <limits>

namespace lockstep::exporter {

Labels Labels::with(std::string_view name, std::string_view value) const {
  Labels more = *this;
  std::string& text = more.text_;
  if (!text.empty()) text += ',';
  text.append(name).append("=\"");
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  text += '"';
  return more;
}

void MetricsPage::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  type_ = type;
  help_ = help;
  begun_ = false;
}

template <typename Value>
void MetricsPage::line(std::string_view suffix, std::string_view labels, Value value) {
  auto out = std::back_inserter(text_);
  if (!begun_) fmt::format_to(out, "# HELP {} {}\n# TYPE {} {}\n", name_, help_, name_, type_);
  begun_ = true;
  text_.append(name_).append(suffix);
  if (!labels.empty()) text_.append("{").append(labels).append("}");
  if constexpr (std::is_floating_point_v<Value>) {
    // A user's record may hold a negative NaN. Prometheus refuses a page with "-nan".
    if (std::isnan(value)) value = std::numeric_limits<Value>::quiet_NaN();
  }
  fmt::format_to(out, " {}\n", value);
}

void MetricsPage::sample(const Labels& labels, double value) {
  line("", labels.text(), value);
}

void MetricsPage::sample(const Labels& labels, std::uint64_t value) {
  line("", labels.text(), value);
}

void MetricsPage::histogram(const Labels& labels, std::span<const double> bounds,
                            std::span<const std::uint64_t> cumulative, double sum) {
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    line("_bucket", fmt::format("{},le=\"{}\"", labels.text(), bounds[i]), cumulative[i]);
  }
  line("_bucket", fmt::format("{},le=\"+Inf\"", labels.text()), cumulative.back());
  line("_sum", labels.text(), sum);
  line("_count", labels.text(), cumulative.back());
}

}  // namespace lockstep::exporter
