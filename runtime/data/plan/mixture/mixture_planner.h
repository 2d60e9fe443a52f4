// Plans a mixture (mixture.h) block by block. It draws samples one by one, each from the data set whose
// share of the tokens is furthest below its weight, so that every step has nearly the shares that the
// weights demand. As in an epoch, a step takes consecutive samples of this order, and if its tokens are a
// promise also later ones that fit; those between them wait for the next steps, whatever their range. A block ends where
// its range of steps ends: the other samples that were drawn for later steps are put back, and the next range draws
// again. The pieces of a split sample are drawn one by one, each at a turn of its data set.
//
// Memory: a block of steps, and one block of samples of each data set.
//
// Threads: a MixturePlanner belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/plan/blockwise_planner.h"
#include "runtime/data/plan/mixture/dataset_stream.h"
#include "runtime/data/plan/mixture/mixture.h"

namespace lockstep::data {

class MixturePlanner final : public BlockwisePlanner {
 public:
  /// `source` holds the data sets one after the other, and must outlive the planner. `options.epoch` is not
  /// used: each data set counts its own epochs. Throws UsageError if an option or the mixture is wrong.
  MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture);

  /// Continues from a state, as EpochPlanner does.
  MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture,
                 const PlanState& state);

  /// Returns false after the last step of the mixture. Throws Error naming a sample that is empty or (if
  /// too_long is refuse) longer than the cap.
  bool next_block(PlannedBlock& block) override;

  /// The samples that wait, and the pieces of split samples that are in no step yet, although an earlier piece of the
  /// sample is.
  std::vector<SampleId> pending_pieces() const;

 private:
  // A data set and the last sample drawn from it.
  struct PartCursor {
    DatasetStream stream;
    DatasetStream::Sample sample;
    std::uint64_t next_piece;  // of that sample; 0: all its pieces are drawn
  };
  struct DrawnItem {
    SampleId id;
    std::uint32_t part;
    std::uint64_t next_piece;  // of the part's cursor after it
    std::uint32_t length;      // as planned; the pool's item has length 0 when it is used
  };

  void begin_range();
  void add_waiting();
  std::vector<PartCursor> cursors_at(const MixturePosition& position) const;
  void draw(std::size_t count);
  void draw_one();
  std::size_t part_furthest_below_weight() const;
  std::uint32_t length_of(const DatasetStream::Sample& sample, std::uint64_t piece,
                          const std::string& part) const;
  void advance(std::size_t end);
  std::size_t part_of(SampleId id) const;

  Mixture mixture_;

  // The items drawn since the range or block began; the last ones are in no step yet.
  std::vector<Item> pool_;
  std::vector<DrawnItem> drawn_;             // of each item of the pool; an item's index is its place
  std::size_t passed_ = 0;                   // items of the pool that the position has passed
  std::vector<std::uint64_t> unused_parts_;  // samples that wait, of data sets that this range does not use
  std::vector<PartCursor> cursors_;
  std::vector<double> shares_;         // of each part in this range, with sum 1
  std::vector<std::uint64_t> tokens_;  // of each part in this range, drawn so far
  std::uint64_t all_tokens_ = 0;       // their sum
};

/// Plans a whole run, as make_plan() plans an epoch. The plan has a mixture().
Plan make_mixture_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options,
                       const Mixture& mixture, std::string fingerprint);

}  // namespace lockstep::data
