// The time of each of LibTorch's operators as a table.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/profile/spans.h"

namespace lockstep::profile {

struct OperatorTime {
  std::string name;
  std::uint64_t calls = 0;
  std::uint64_t total_ns = 0;  ///< with the operators that it called; recursive calls count once
  std::uint64_t self_ns = 0;   ///< without the operators that it called
};

/// The operators among `spans`, the largest own time first.
std::vector<OperatorTime> operator_times(std::span<const Span> spans);

/// One line per operator: calls, total and own time in milliseconds, the share of all own time.
std::string operator_table(std::span<const OperatorTime> operators);

}  // namespace lockstep::profile
