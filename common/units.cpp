#include "common/units.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "common/clock.h"
#include "common/error.h"

namespace lockstep {
namespace {

// Three significant digits, without a trailing point: 1.23, 12.3, 123.
std::string three_digits(double value) {
  if (value >= 99.95) return fmt::format("{:.0f}", value);
  if (value >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{} us", three_digits(seconds * 1e6));
  if (seconds < 1) return fmt::format("{} ms", three_digits(seconds * 1e3));
  if (seconds < 60) return fmt::format("{} s", three_digits(seconds));
  const auto whole = static_cast<std::uint64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string format_count(double count) {
  constexpr std::array<const char*, 5> kUnits{"", " k", " M", " G", " T"};
  std::size_t unit = 0;
  while (count >= 999.5 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  if (unit == 0 && count == std::floor(count)) return fmt::format("{:.0f}", count);
  return three_digits(count) + kUnits[unit];
}

std::uint64_t parse_bytes(std::string_view text) {
  double value = 0;
  const char* end_of_text = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), end_of_text, value);
  std::string_view unit(end, static_cast<std::size_t>(end_of_text - end));
  if (error != std::errc() || !(value >= 0))
    fail_usage("'{}' is not a size; write it like 4096, 64K or 1.5G", text);
  if (unit.ends_with("iB")) {
    unit.remove_suffix(2);
  } else if (unit.ends_with('B')) {
    unit.remove_suffix(1);
  }
  constexpr std::string_view kLetters = "KMGTP";
  double scale = 1;
  if (!unit.empty()) {
    const auto at = kLetters.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))));
    if (unit.size() != 1 || at == std::string_view::npos) {
      fail_usage("'{}' is not a size; write it like 4096, 64K or 1.5G", text);
    }
    scale = std::pow(1024.0, static_cast<double>(at + 1));
  }
  if (value * scale >= 0x1p63) fail_usage("'{}' is too large a size", text);
  if (value > 0 && value * scale < 1) fail_usage("'{}' is less than a byte", text);
  return static_cast<std::uint64_t>(value * scale);
}

Progress::Progress(std::string label, std::uint64_t total, Unit unit)
    : label_(std::move(label)),
      total_(total),
      unit_(unit),
      begin_ns_(monotonic_ns()),
      terminal_(::isatty(STDERR_FILENO) == 1) {
}

Progress::~Progress() {
  if (terminal_ && drawn_ns_ != 0) std::fputs("\r\033[K", stderr);
}

void Progress::update(std::uint64_t done) {
  if (!terminal_) return;
  const std::uint64_t now = monotonic_ns();
  if (now - drawn_ns_ < 100'000'000U && done != total_) return;
  drawn_ns_ = now;
  const double rate = static_cast<double>(done) / std::max(1e-9, seconds_between(begin_ns_, now));
  const auto amount = [&](std::uint64_t of) {
    return unit_ == Unit::bytes ? format_bytes(of) : format_count(static_cast<double>(of));
  };
  std::string line = fmt::format("\r\033[K{} {}", label_, amount(done));
  if (total_ > 0) {
    const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total_));
    line += fmt::format(" of {} [{:<20}] {:.0f} %", amount(total_),
                        std::string(static_cast<std::size_t>(part * 20), '#'), part * 100);
  }
  line += fmt::format(" {}/s", amount(static_cast<std::uint64_t>(rate)));
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace lockstep
