#include "runtime/ddp/step_message.h"

#include <algorithm>
#include <utility>

namespace lockstep::ddp {
namespace {

// ReduceOp::sum_or_max: the lowest bit says what happens to a number.
constexpr std::int64_t to_sum(std::int64_t value) {
  return value * 2;
}
constexpr std::int64_t to_max(std::uint64_t value) {
  return static_cast<std::int64_t>(value << 1U | 1U);
}
constexpr std::uint64_t value_of(std::int64_t number) {
  return static_cast<std::uint64_t>(number) >> 1U;
}

// The minimum is the complement of the maximum of complements.
constexpr std::uint64_t kMax = (std::uint64_t{1} << 62U) - 1;
constexpr std::int64_t to_min(std::uint64_t value) {
  return to_max(kMax - value);
}
constexpr std::uint64_t min_of(std::int64_t number) {
  return kMax - value_of(number);
}

// A duration with its rank: 42 bits of nanoseconds are more than an hour.
constexpr unsigned kRankBits = 20;
constexpr std::uint64_t kMaxDuration = kMax >> kRankBits;
static_assert(kMaxDuration == kUnknownDuration);

enum : std::uint8_t { kCount, kOverRanks, kByCount, kStop, kDurations };

// The first rank of those that send `mine`; -1 if none does.
std::int64_t to_first_rank(bool mine, int rank) {
  return to_min(mine ? static_cast<std::uint64_t>(rank) : kMax);
}
int first_rank_of(std::int64_t number) {
  return min_of(number) == kMax ? -1 : static_cast<int>(min_of(number));
}

JobAverage average_of(const std::vector<std::int64_t>& numbers) {
  return {.count = numbers[kCount] / 2,
          .over_ranks = first_rank_of(numbers[kOverRanks]),
          .by_count = first_rank_of(numbers[kByCount])};
}

}  // namespace

void StepMessage::send(const StepReport& report, std::function<void(const JobAverage&)> decide, Decide when) {
  const auto& [mode, count] = report.average;
  const auto numbers = std::make_shared<std::vector<std::int64_t>>(
      std::vector{to_sum(count), to_first_rank(mode == Averaging::over_ranks, communicator_.rank()),
                  to_first_rank(mode == Averaging::by_count, communicator_.rank()),
                  to_max(static_cast<std::uint64_t>(StopRequest::mine))});
  for (const std::uint64_t duration : report.durations) {
    const std::uint64_t with_rank =
        std::min(duration, kMaxDuration) << kRankBits | static_cast<std::uint64_t>(communicator_.rank());
    numbers->push_back(to_min(with_rank));
    numbers->push_back(to_max(with_rank));
  }
  std::function<void()> then;
  if (when == Decide::at_once)
    then = [numbers, decide = std::exchange(decide, nullptr)] { decide(average_of(*numbers)); };
  auto work =
      communicator_.all_reduce({numbers->data(), numbers->size(), comm::DataType::i64}, "the step's message",
                               {.op = comm::ReduceOp::sum_or_max, .then = std::move(then), .keep = numbers});
  pending_.push_back({numbers, std::move(work), std::move(decide)});
}

std::int64_t StepMessage::newest_count() const {
  pending_.back().work->wait();
  return average_of(*pending_.back().numbers).count;
}

StepSummary StepMessage::receive() {
  const Pending message = std::move(pending_.front());
  pending_.pop_front();
  message.work->wait();
  const std::vector<std::int64_t>& numbers = *message.numbers;
  StepSummary summary{.average = average_of(numbers), .durations = {}};
  if (message.decide) message.decide(summary.average);
  for (std::size_t i = kDurations; i < numbers.size(); i += 2) {
    const std::uint64_t shortest = min_of(numbers[i]);
    summary.durations.push_back(
        {.shortest_ns = shortest >> kRankBits,
         .late_rank = static_cast<int>(shortest & ((std::uint64_t{1} << kRankBits) - 1)),
         .longest_ns = value_of(numbers[i + 1]) >> kRankBits});
  }
  StopRequest::agreed = std::max(StopRequest::agreed, static_cast<int>(value_of(numbers[kStop])));
  ++StopRequest::messages;
  return summary;
}

}  // namespace lockstep::ddp
