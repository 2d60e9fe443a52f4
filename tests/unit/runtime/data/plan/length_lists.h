// Lists of lengths for tests of planners.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace lockstep::data {

struct LengthList {
  std::string name;
  std::vector<std::uint32_t> lengths;
};

inline std::uint32_t clamped(double length, std::uint32_t longest) {
  return static_cast<std::uint32_t>(std::clamp(length, 1.0, static_cast<double>(longest)));
}

/// One list of each kind, with lengths in 1..longest.
inline std::vector<LengthList> length_lists(std::size_t samples, std::uint32_t longest, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<std::uint32_t> uniform(1, longest);
  std::lognormal_distribution<double> log_normal(std::log(longest / 20.0 + 2), 0.8);
  std::uniform_real_distribution<double> unit(1e-9, 1);
  std::vector<LengthList> lists = {{"uniform", {}},   {"log-normal", {}}, {"Pareto", {}},
                                   {"all equal", {}}, {"one giant", {}},  {"two values", {}}};
  for (std::size_t i = 0; i < samples; ++i) {
    lists[0].lengths.push_back(uniform(engine));
    lists[1].lengths.push_back(clamped(log_normal(engine), longest));
    lists[2].lengths.push_back(clamped(longest / 50.0 * std::pow(unit(engine), -1 / 1.2), longest));
    lists[3].lengths.push_back(std::max(1U, longest / 3));
    lists[4].lengths.push_back(i == samples / 2 ? longest : std::max(1U, longest / 40));
    lists[5].lengths.push_back(engine() % 10 == 0 ? longest : std::max(1U, longest / 25));
  }
  lists.push_back({"empty", {}});
  lists.push_back({"one sample", {longest}});
  return lists;
}

}  // namespace lockstep::data
