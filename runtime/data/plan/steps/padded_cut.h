// Cuts a step's samples into padded micro-batches of rows x longest. Samples of similar length share one,
// which keeps padding small. More micro-batches save padding, but each has a fixed cost.
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

  /// The consecutive items of one micro-batch.
  struct ItemGroup {
    std::uint32_t begin;
    std::uint32_t end;
    double cost;
  };

  /// Cuts items that are sorted longest first and none over the cap. Makes about three micro-batches for
  /// each full micro-batch of the step's tokens, and more if the cap requires it. None costs more than an
  /// equal share of a rank, unless it is a single sample.
  const std::vector<ItemGroup>& cut(std::span<const Item> items);

 private:
  std::size_t best_cut(double price);
  void prepare(std::span<const Item> items);

  std::size_t ranks_;
  std::size_t wanted_;  // micro-batches
  std::uint64_t cap_;
  std::uint32_t multiple_;
  Cost cost_;
  std::vector<double> row_;                // padded length of each item
  std::vector<std::uint32_t> run_begins_;  // of runs of equal rows, without the first
  std::vector<std::uint32_t> max_end_;     // latest end of a group that begins with the item
  std::vector<double> price_to_;           // of the best cut of the items before this one
  std::vector<std::uint32_t> begin_;       // of the last group of that cut
  std::vector<ItemGroup> groups_;
};

}  // namespace lockstep::data
