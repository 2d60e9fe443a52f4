#include "common/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "common/clock.h"
#include "common/units.h"

namespace lockstep {

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
