#include "exporters/record/snapshot.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace lockstep::record {

std::string uuid_text(const Gpu& gpu) {
  std::array<char, 48> text{};
  const auto [high, low] = gpu.uuid;
  std::snprintf(text.data(), text.size(), "GPU-%08llx-%04llx-%04llx-%04llx-%012llx",
                static_cast<unsigned long long>(high >> 32U),
                static_cast<unsigned long long>(high >> 16U & 0xffffU),
                static_cast<unsigned long long>(high & 0xffffU), static_cast<unsigned long long>(low >> 48U),
                static_cast<unsigned long long>(low & 0xffff'ffff'ffffU));
  return text.data();
}

std::map<int, double> waits_by_rank(std::span<const Step> steps) {
  std::map<int, double> waits;
  for (const Step& step : steps) {
    if (step.late_rank < 0 || !std::in_range<int>(step.late_rank) || step.comm_wait_ns == 0) continue;
    waits[static_cast<int>(step.late_rank)] +=
        static_cast<double>(step.comm_wait_ns) * 1e-9 / static_cast<double>(steps.size());
  }
  return waits;
}

std::optional<std::pair<int, double>> longest_wait(const std::map<int, double>& waits) {
  const auto longest = std::max_element(waits.begin(), waits.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  if (longest == waits.end()) return std::nullopt;
  return *longest;
}

}  // namespace lockstep::record
