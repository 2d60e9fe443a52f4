// Cuts a step's samples into padded micro-batches, rows x longest: neighbours in length share one, so that
// little is padding. Each micro-batch more saves padding, and has a cost of its own.
//
// Threads: a PaddedCut belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/options.h"
#include "runtime/data/plan/steps/item.h"

namespace lockstep::data {

class PaddedCut {
 public:
  explicit PaddedCut(const PlanOptions& options);

  struct Group {
    std::uint32_t begin;  ///< in the items
    std::uint32_t end;
    double cost;
  };

  /// Cuts items, longest first and none over the cap, into about three micro-batches for each that the step's
  /// tokens would fill, more where the cap asks for it. None costs more than a rank's equal share of all,
  /// unless it is a single sample.
  const std::vector<Group>& cut(std::span<const Item> items);

 private:
  std::size_t best_cut(double price);
  void prepare(std::span<const Item> items);

  std::size_t ranks_;
  std::size_t wanted_;
  std::uint64_t cap_;
  std::uint32_t multiple_;
  Cost cost_;
  std::vector<double> row_;                // of each item, were it the longest
  std::vector<std::uint32_t> run_begins_;  // but the first
  std::vector<std::uint32_t> max_end_;     // where the group must end that begins with the item
  std::vector<double> price_to_;           // of the best cut of the items before this one
  std::vector<std::uint32_t> begin_;       // of that cut's last group
  std::vector<Group> groups_;
};

}  // namespace lockstep::data
