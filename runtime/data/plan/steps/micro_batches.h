// Cuts samples into micro-batches under the cap: a rank's share of a step, or if micro-batches are padded the whole step
// before it is distributed. Both need the samples longest first.
//
// Threads: an object of these classes belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/data/plan/options.h"
#include "runtime/data/plan/steps/item.h"

namespace lockstep::data {

/// A radix sort: sorting by comparison would take longer than everything else that the planner does with a sample.
class LengthSort {
 public:
  /// The sort is stable: samples of equal length keep their order.
  void longest_first(std::vector<Item>& items);

 private:
  std::vector<Item> other_;
  std::vector<std::uint32_t> counts_;
};

/// First fit in descending order of length (Johnson, "Near-Optimal Bin Packing Algorithms", 1973), which needs at most 11/9
/// of the minimum and one more.
class MicroBatches {
 public:
  explicit MicroBatches(std::uint64_t cap) : cap_(cap) {}

  /// Cuts the items at these places, which must be sorted longest first and none over the cap. Appends
  /// their indices to `indices`, micro-batch by micro-batch, and the end of each micro-batch to `ends`. The
  /// fullest one comes last, because gradients travel during its backward.
  void cut(std::span<const Item> items, std::span<const std::uint32_t> places,
           std::vector<std::uint32_t>& indices, std::vector<std::uint32_t>& ends);

 private:
  std::uint64_t cap_;
  std::vector<std::uint32_t> batch_of_;  // of each place
  // A binary tree. Its leaves are the free tokens of each micro-batch, opened or not; an inner node is the
  // maximum of its two children.
  std::vector<std::uint64_t> free_tokens_;
  std::vector<std::uint32_t> sizes_;  // of each micro-batch, samples; then where its next sample goes
};

/// Cuts into padded micro-batches of rows x longest. Samples of similar length share one, which keeps padding small. More
/// micro-batches save padding, but each has a fixed cost.
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
