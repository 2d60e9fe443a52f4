// A made-up run whose plan gives all ranks equal cost.
#pragma once

#include "tests/unit/exporters/made_up_run.h"

namespace lockstep::testing {

/// In each step the ranks have different tokens and squared lengths, of equal cost ratio * tokens + squares. Forward and
/// backward take true_ratio * tokens + squares.
inline MadeUpRun::Change planned(double ratio, double true_ratio) {
  return [=](RankStep& does, int rank, int step) {
    const auto different = static_cast<std::uint64_t>((rank * 7 + step * 5) % 11);
    does.tokens = 690 + 60 * different;
    const double tokens = static_cast<double>(does.tokens + does.padding);
    does.squares = static_cast<std::uint64_t>(1400 * ratio - ratio * tokens);
    const double time =
        (true_ratio * tokens + static_cast<double>(does.squares)) / (1000 * true_ratio + 400 * ratio);
    does.forward = 28 * time;
    does.backward = 50 * time;
  };
}

}  // namespace lockstep::testing
