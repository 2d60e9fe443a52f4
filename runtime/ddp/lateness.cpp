#include "runtime/ddp/lateness.h"

#include <algorithm>

#include "common/clock.h"

namespace lockstep::ddp {
namespace {

struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The time that is covered by at least one interval.
std::uint64_t length_of_union(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& left, const Interval& right) { return left.begin < right.begin; });
  std::uint64_t length = 0;
  std::uint64_t counted_to = 0;
  for (const auto& [begin, end] : intervals) {
    const std::uint64_t from = std::max(begin, counted_to);
    if (end > from) length += end - from;
    counted_to = std::max(counted_to, end);
  }
  return length;
}

}  // namespace

std::vector<std::uint64_t> durations_of(std::span<const ReductionTimes> reductions) {
  std::vector<std::uint64_t> durations;
  std::uint64_t before = 0;
  for (const auto& reduction : reductions) {
    const std::uint64_t begin = std::max(reduction.asked_ns, before);
    durations.push_back(reduction.ended_ns > begin ? reduction.ended_ns - begin : 0);
    before = std::max(before, reduction.ended_ns);
  }
  return durations;
}

void place_late_rank(std::span<ReductionTimes> reductions, std::span<const DurationRange> durations,
                     std::uint64_t latency_ns) {
  for (std::size_t i = 0; i < reductions.size(); ++i) {
    const auto& [shortest, last, longest] = durations[i];
    reductions[i].all_asked_ns = reductions[i].ended_ns - shortest;
    reductions[i].late_rank = longest - shortest > latency_ns ? last : -1;
  }
}

CommShare share_of(std::span<const ReductionTimes> reductions, std::uint64_t backward_ended_ns, int rank) {
  CommShare share;
  std::vector<Interval> transfers;
  std::vector<Interval> waits;
  std::uint64_t longest = 0;
  for (const auto& reduction : reductions) {
    const std::uint64_t began = std::max(reduction.began_ns, reduction.asked_ns);
    transfers.push_back({std::max(began, reduction.all_asked_ns), reduction.ended_ns});
    if (reduction.late_rank < 0 || reduction.late_rank == rank) continue;
    const Interval wait{std::max(reduction.asked_ns, backward_ended_ns), reduction.all_asked_ns};
    if (wait.end <= wait.begin) continue;
    waits.push_back(wait);
    if (wait.end - wait.begin > longest) {
      longest = wait.end - wait.begin;
      share.late_rank = reduction.late_rank;
    }
  }
  share.transfer_ns = length_of_union(std::move(transfers));
  share.wait_ns = length_of_union(std::move(waits));
  return share;
}

std::uint64_t measure_latency(comm::Communicator& communicator) {
  constexpr int kTries = 5;
  std::int64_t best = 0;
  for (int i = 0; i < kTries; ++i) {
    std::int64_t ignored = 0;
    const std::uint64_t begin = monotonic_ns();
    communicator.all_reduce({&ignored, 1, comm::DataType::i64}, "a measurement of latency")->wait();
    const auto took = static_cast<std::int64_t>(monotonic_ns() - begin);
    best = i == 0 ? took : std::min(best, took);
  }
  communicator
      .all_reduce({&best, 1, comm::DataType::i64}, "the measured latency", {.op = comm::ReduceOp::max})
      ->wait();
  return static_cast<std::uint64_t>(best);
}

// Called once: finds out whether the communicator tells every rank which rank was last.
void Lateness::compare_clocks(std::span<const ReductionTimes> reductions) {
  clocks_compared_ = true;
  std::int32_t unknown = std::any_of(reductions.begin(), reductions.end(),
                                     [](const auto& reduction) { return reduction.late_rank < 0; })
                             ? 1
                             : 0;
  communicator_
      .all_reduce({&unknown, 1, comm::DataType::i32}, "whether clocks are common",
                  {.op = comm::ReduceOp::max})
      ->wait();
  exchanging_ = unknown != 0;
  if (exchanging_) measure();
}

std::vector<std::uint64_t> Lateness::to_compare() const {
  return exchanging_ && previous_ ? durations_of(previous_->reductions) : std::vector<std::uint64_t>{};
}

std::optional<Lateness::StepTimes> Lateness::compare(StepTimes step,
                                                     std::span<const DurationRange> compared) const {
  if (std::any_of(compared.begin(), compared.end(),
                  [](const DurationRange& range) { return range.longest_ns >= kUnknownDuration; }))
    return std::nullopt;
  place_late_rank(step.reductions, compared, latency_ns_);
  step.share = share_of(step.reductions, step.backward_ended_ns, communicator_.rank());
  return step;
}

std::optional<Lateness::StepTimes> Lateness::end_step(std::vector<ReductionTimes> reductions,
                                                      std::uint64_t backward_ended_ns,
                                                      std::span<const DurationRange> compared) {
  if (communicator_.size() == 1) return std::nullopt;
  if (!clocks_compared_) compare_clocks(reductions);
  StepTimes now{.reductions = std::move(reductions), .backward_ended_ns = backward_ended_ns, .share = {}};
  std::optional<StepTimes> known;
  if (!exchanging_) {
    known = std::move(now);
  } else {
    if (!compared.empty()) {
      known = std::move(previous_);
      place_late_rank(known->reductions, compared, latency_ns_);
    }
    previous_ = std::move(now);
  }
  if (known) known->share = share_of(known->reductions, known->backward_ended_ns, communicator_.rank());
  return known;
}

}  // namespace lockstep::ddp
