// Plans a mixture (mixture.h) block by block. Samples are drawn one after the other, each from the data set
// that is furthest behind its weight, so that every step has nearly the shares that the weights say; steps
// are runs of neighbours in that order, as in an epoch. A block ends with its range of steps: what was drawn
// for a step that did not come is drawn again by the next range, from the data sets that it uses. The pieces
// of a sample that is split are drawn one by one, each when its data set's turn comes.
//
//   MixturePlanner planner(lengths, options, mixture);
//   for (PlannedBlock block; planner.next_block(block);) ...
//
// Needs memory for a block of steps, and for one block of samples of each data set.
//
// Threads: a MixturePlanner belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/data/plan/blockwise_planner.h"
#include "runtime/data/plan/mixture/dataset_stream.h"
#include "runtime/data/plan/mixture/mixture.h"
#include "runtime/data/plan/order/length_source.h"
#include "runtime/data/plan/steps/item.h"
#include "runtime/data/plan/steps/step_packer.h"

namespace lockstep::data {

class MixturePlanner final : public BlockwisePlanner {
 public:
  /// `source` holds the data sets one after the other, and must outlive the planner. `options.epoch` has no
  /// meaning: each data set counts its own epochs. Throws UsageError when an option or the mixture is wrong.
  MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture);

  /// Goes on from a state, as EpochPlanner does.
  MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture,
                 const PlanState& state);

  /// False when the mixture's steps are done. Throws Error where a sample is empty or (unless the options say
  /// otherwise) longer than the cap, naming it.
  bool next_block(PlannedBlock& block) override;
  void change(const Cost& cost, const std::vector<double>& speeds) override;

  const PlanState& state() const override { return state_; }
  /// The pieces that are still to be drawn of samples that were begun.
  std::vector<SampleId> pending_pieces() const;

 private:
  // A data set, and the sample of it that was drawn last.
  struct Source {
    DatasetStream stream;
    DatasetStream::Sample sample;
    std::uint64_t next_piece;  // of that sample; 0: it is complete
  };
  struct Drawn {
    SampleId id;
    std::uint32_t part;
    std::uint64_t next_piece;
  };

  void begin_range();
  std::vector<Source> sources_at(const MixturePosition& position) const;
  void draw(std::size_t count);
  void draw_one();
  std::size_t neediest_part() const;
  std::uint64_t length_in_range(std::uint32_t length) const;
  std::uint32_t planned(const DatasetStream::Sample& sample, std::uint64_t piece,
                        const std::string& part) const;
  void advance(MixturePosition& position, std::size_t begin, std::size_t end) const;

  const LengthSource& source_;
  PlanOptions options_;
  Mixture mixture_;
  StepPacker packer_;
  PlanState state_;  // after the steps planned so far

  // Drawn and in no step yet, and where drawing goes on after them. Empty: nothing is drawn since state_.
  std::vector<Item> pool_;
  std::vector<Drawn> drawn_;  // of each item of the pool; an item's index is its place
  std::vector<Source> sources_;
  std::vector<double> shares_;         // of each part in this range, 1 together
  std::vector<std::uint64_t> tokens_;  // of each part in this range, drawn
  std::uint64_t all_tokens_ = 0;
};

}  // namespace lockstep::data
