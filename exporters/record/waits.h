// How long a rank waited for which other rank, from its steps.
//
// Threads: safe from any.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "exporters/record/layout.h"

namespace lockstep::record {

/// Seconds per step by the rank that was waited for. A step counts for the rank that it waited for longest. Empty if
/// there was no waiting, or if it was not measured.
std::map<int, double> waits_by_rank(const std::vector<Step>& steps);

/// The rank with the longest of these waits, and its seconds; of equal ones the first rank. None without waits.
std::optional<std::pair<int, double>> longest_wait(const std::map<int, double>& waits);

}  // namespace lockstep::record
