// A page of metrics in Prometheus' text format. Samples are appended to one string as they are read from the records,
// so a page needs little more memory than its text.
//
// Threads: a value, used by one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::exporter {

/// Labels as they stand between the braces of a sample: `job_id="7",rank="0"`.
class Labels {
 public:
  /// A copy with one more label. The value may be any text.
  Labels with(std::string_view name, std::string_view value) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class MetricsPage {
 public:
  /// Begins a family. All its samples must follow before the next family. A family without samples leaves
  /// nothing on the page. The texts must outlive the family.
  void family(std::string_view name, std::string_view type, std::string_view help);

  /// Any NaN is written as "nan".
  void sample(const Labels& labels, double value);
  void sample(const Labels& labels, std::uint64_t value);

  /// The buckets, sum and count of a histogram. `cumulative` has one more entry than `bounds`: the count.
  void histogram(const Labels& labels, std::span<const double> bounds,
                 std::span<const std::uint64_t> cumulative, double sum);

  std::string take() { return std::move(text_); }

 private:
  template <typename Value>
  void line(std::string_view suffix, std::string_view labels, Value value);

  std::string text_;
  std::string_view name_;
  std::string_view type_;
  std::string_view help_;
  bool begun_ = false;  // the family has a sample
};

}  // namespace lockstep::exporter
