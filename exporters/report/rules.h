// The rules by which a report advises: each is a row of a table, with its name, its condition and its texts.
//
// Threads: values.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exporters/report/diagnosis.h"

namespace lockstep::report {

/// The facts that a rule decides by.
struct Facts {
  const Run& run;
  const Diagnosis& found;           ///< without its advice
  const Straggler* late = nullptr;  ///< the one of `found.late` that a rule of late ranks is about
};

/// A rule that fires says this.
struct Finding {
  std::string sentence;  ///< with the number
  std::vector<std::string>
      names{};  ///< for the three {} of the remedy, at most; if there are none, its braces are text
};

using Found = std::optional<Finding>;

struct Rule {
  const char* id;             ///< its name in the documentation
  std::optional<Bound> part;  ///< of the step, which the remedy makes shorter
  /// None if the rule does not fire.
  Found (*find)(const Facts& facts);
  const char* remedy;            ///< a sentence with the command, option or line of code
  const char* python = nullptr;  ///< the remedy for jobs in Python, where the other one is C++
};

inline constexpr std::optional<Bound> kNone{};

/// On a rank that others wait for (late_rules.cpp): the first one that fires.
std::span<const Rule> late_rules();
/// On GPUs, memory, processors, and the operators of a profile (resource_rules.cpp).
std::span<const Rule> resource_rules();

// Below these shares of the step, input and checkpoints are not worth the effort.
inline constexpr double kDataWait = 0.05;
inline constexpr double kCheckpoint = 0.10;

template <typename... Values>
Found say(fmt::format_string<Values...> sentence, Values&&... values) {
  return Finding{.sentence = fmt::format(sentence, std::forward<Values>(values)...)};
}

inline double share_of(const record::Snapshot& rank, record::Phase phase) {
  const auto ns = static_cast<double>(rank.counters.phase_ns[record::index(phase)]);
  return rank.counters.step_ns == 0 ? 0 : ns / static_cast<double>(rank.counters.step_ns);
}

/// The share that at least half of the ranks reach, so that one rank's fault does not count as the job's.
inline double share_of(const Run& run, record::Phase phase) {
  std::vector<double> shares;
  for (const record::Snapshot& rank : run.ranks) shares.push_back(share_of(rank, phase));
  std::sort(shares.begin(), shares.end());
  return shares[(shares.size() - 1) / 2];
}

}  // namespace lockstep::report
