#include "runtime/data/plan/block_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "runtime/data/plan/exchange.h"

namespace lockstep::data {
namespace {

// What a step takes of its capacity. The rest is the slack that lets a rank of long samples hold fewer tokens
// than one of short samples; it costs 1.5 % more steps, each as much shorter.
constexpr double kFill = 0.985;
// The last sample may take a step as far as this.
constexpr double kMostFill = 0.9925;
// A step that ends below this looks further into the pool for samples that fit.
constexpr double kLeastFill = 0.982;
// A rank of a step with outliers gets this much more than the mean.
constexpr double kMostBesideOutliers = 1.02;
// Of the randomness budget, that the choice of samples may use; what does not fit in the end moves the mean a
// little.
constexpr double kBudgetUse = 0.97;
// The same where there are outliers, whose release before the epoch's end has to be paid for.
constexpr double kBudgetUseOfOutliers = 0.9;
// The same of steps that are fitted together: the last ones of an epoch have little to choose from.
constexpr double kBudgetUseOfFitted = 0.93;
// Samples ahead in which a step looks for ones that suit it better than the next, at least.
constexpr std::size_t kLookAhead = 1024;
// Steps after which those are tried again that the budget did not allow.
constexpr std::size_t kPatience = 8;
// A step that is short of its target looks ahead so many times as many samples as it has, up to kLookAhead.
constexpr std::size_t kTopUpLookAhead = 32;
// Micro-batches of fewer samples than this, at the mean, are filled by exchanging samples, not by adding
// some.
constexpr std::size_t kFewSamples = 8;
// Samples ahead among which it is looked for those.
constexpr std::size_t kFitLookAhead = 256;
// Samples ahead in which a step looks for one that fills its last gap.
constexpr std::size_t kGapLookAhead = 32;
// A block that is not the last ends when it has less than this many steps' tokens left, so that the last
// steps too have something to choose from.
constexpr double kLeaveOver = 1.25;

double capacity_of(const PlanOptions& options) {
  const double all = static_cast<double>(options.cap) * options.ranks * options.accumulate;
  if (options.speeds.empty()) return all;
  // A slower rank gets its share of what the fastest can hold.
  const double sum = std::accumulate(options.speeds.begin(), options.speeds.end(), 0.0);
  const double fastest = *std::max_element(options.speeds.begin(), options.speeds.end());
  return all * sum / (fastest * options.ranks);
}

}  // namespace

BlockPlanner::BlockPlanner(const PlanOptions& options)
    : options_(options),
      capacity_(std::max<std::uint64_t>(1, static_cast<std::uint64_t>(capacity_of(options)))),
      share_(kFill * capacity_of(options) / options.ranks),
      fill_(options.ranks * options.accumulate == 1 ? 1 : kFill),
      own_packer_(options),
      packer_(&own_packer_),
      padded_(options, capacity_),
      fitted_(options),
      random_(0, 0, 0),
      outliers_(options) {
}

void BlockPlanner::begin(std::vector<Item> items, const Place& place) {
  items_ = std::move(items);
  next_ = 0;
  last_ = place.last;
  padded_.begin();
  patience_ = 0;
  tokens_left_ = tokens_of(items_);
  first_.clear();
  if (last_ && options_.tail == Tail::repeat) {
    std::uint64_t tokens = 0;
    for (std::size_t i = 0; i < items_.size() && tokens < capacity_; ++i) {
      first_.push_back(items_[i]);
      tokens += items_[i].length;
    }
  }
  // What was left over from the last block, outliers most of all, says little of what samples are like.
  std::span<const Item> own = items_;
  if (place.carried < items_.size() / 2) own = own.subspan(place.carried);
  budget_ = RandomnessBudget(own, kBudgetUse * options_.randomness, place.saved);
  random_ = Random(options_.seed, options_.epoch, ~static_cast<std::uint64_t>(place.block));
  behind_ = last_ ? 0 : static_cast<double>(place.behind);
  fits_ = leave_little_room(own);
  if (fits_) {
    fitted_.begin();
    budget_.lower_bound_to(kBudgetUseOfFitted * options_.randomness);
  }
  outliers_.begin(fits_ ? std::span<const Item>{} : own, budget_, share_, static_cast<double>(target()));
  if (outliers_.any()) budget_.lower_bound_to(kBudgetUseOfOutliers * options_.randomness);
  // Those that waited go on waiting.
  std::size_t kept = place.carried;
  for (std::size_t i = place.carried; i-- > 0;) {
    if (outliers_.takes(items_[i])) {
      outliers_.add(items_[i]);
    } else {
      items_[--kept] = items_[i];
    }
  }
  next_ = kept;
}

// Whether micro-batches hold few samples, a third of the tokens in ones of which no two fit together; or
// whatever the lengths, where steps are to be more alike than chance.
bool BlockPlanner::leave_little_room(std::span<const Item> items) const {
  if (options_.padded || options_.order == Order::sequential || !options_.speeds.empty()) return false;
  if (packer_->micro_batches() == 1) return false;
  std::uint64_t all = 0;
  std::uint64_t in_long = 0;
  std::uint64_t count = 0;
  for (const Item& item : items) {
    all += item.length;
    if (2 * std::uint64_t{item.length} > options_.cap) {
      in_long += item.length;
      ++count;
    }
  }
  if (static_cast<double>(options_.cap) < kFewSamples * budget_.mean())
    return options_.randomness <= 1 || 3 * in_long > all;
  // So many long ones that the others hardly fill what these leave free.
  return 10 * count * options_.cap > 9 * all;
}

std::uint64_t BlockPlanner::target() const {
  // A step takes something even where a rank's share is a single token.
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(fill_ * static_cast<double>(capacity_)));
}

// Of the epoch, about.
double BlockPlanner::steps_left() const {
  return (static_cast<double>(tokens_left_) + behind_ * budget_.mean()) / static_cast<double>(target());
}

// One outlier for each rank, as soon as so many wait and the budget allows. Fewer, as many as it allows,
// where too many wait; as many as are due in any case.
void BlockPlanner::choose(std::size_t most) {
  const auto ranks = static_cast<std::size_t>(options_.ranks);
  if (outliers_.any()) expect();
  outliers_.look_ahead(steps_left(), budget_);
  due_ = std::min({outliers_.due(), most, outliers_.size()});
  const bool full = outliers_.full();
  std::size_t count = full || outliers_.size() >= ranks ? std::min({outliers_.size(), ranks, most}) : 0;
  if (patience_ > 0 && !full) {
    --patience_;
    count = 0;
  }
  count = std::max(count, due_);
  const std::size_t least = full ? 1 : (ranks + 3) / 4;
  for (;;) {
    outliers_.release(count, chosen_);
    pinned_ = count;
    take_front(target());
    if (chosen_.empty()) outliers_.release(outliers_.size(), chosen_);  // none but outliers were left
    if (keep_within_budget() || count <= due_) return;
    // Not so many now.
    for (const Item& item : std::span(chosen_).first(pinned_)) outliers_.add(item);
    put_back(std::span(chosen_).subspan(pinned_));
    chosen_.clear();
    patience_ = kPatience;
    count = std::max(due_, count / 2 < least ? 0 : count / 2);
  }
}

// Takes from the pool's front until the step has so many tokens; outliers step aside.
void BlockPlanner::take_front(std::uint64_t tokens) {
  const auto most =
      std::max(tokens, static_cast<std::uint64_t>(fill_ < 1 ? kMostFill * static_cast<double>(capacity_)
                                                            : static_cast<double>(capacity_)));
  std::uint64_t sum = tokens_of(chosen_);
  while (sum < tokens && next_ < items_.size()) {
    const Item item = items_[next_];
    if (outliers_.takes(item)) {
      outliers_.add(item);
    } else if (sum + item.length > most && !chosen_.empty()) {
      break;
    } else {
      chosen_.push_back(item);
      sum += item.length;
    }
    ++next_;
  }
  if (sum < tokens) fill_gap(sum, most);
}

// Takes the longest sample of the next few that fits, the others stay in order.
void BlockPlanner::fill_gap(std::uint64_t tokens, std::uint64_t most) {
  const std::size_t end = std::min(items_.size(), next_ + kGapLookAhead);
  std::size_t best = end;
  for (std::size_t i = next_; i < end; ++i) {
    if (outliers_.takes(items_[i]) || tokens + items_[i].length > most) continue;
    if (best == end || items_[i].length > items_[best].length) best = i;
  }
  if (best == end) return;
  chosen_.push_back(items_[best]);
  for (; best > next_; --best) items_[best] = items_[best - 1];
  ++next_;
}

// In front of the pool there is always room: what comes back was taken from there.
void BlockPlanner::put_back(std::span<const Item> items) {
  next_ -= items.size();
  std::copy(items.begin(), items.end(), items_.begin() + static_cast<std::ptrdiff_t>(next_));
}

// Takes so many samples into window_, or all that are left; outliers step aside.
void BlockPlanner::take_window(std::size_t least) {
  window_.clear();
  while (window_.size() < least && next_ < items_.size()) {
    const Item item = items_[next_++];
    if (outliers_.takes(item)) {
      outliers_.add(item);
    } else {
      window_.push_back(item);
    }
  }
}

// Where outliers wait, what is left is longer than the epoch was: steps can only be alike.
void BlockPlanner::expect() {
  if (outliers_.size() == 0) {
    budget_.expect(budget_.mean());
    return;
  }
  const auto count = static_cast<double>(items_.size() - next_ + outliers_.size()) + behind_;
  if (count > 0) budget_.expect((static_cast<double>(tokens_left_) + behind_ * budget_.mean()) / count);
}

// Where the step's mean length is out of the budget, exchanges short samples for one that is as long as they
// are together: the number of samples changes, and so the mean, while the tokens stay. Short ones come from
// the pool when the mean is too great, and go there when it is too small.
bool BlockPlanner::keep_within_budget() {
  if (options_.order == Order::sequential || chosen_.empty()) return true;
  std::uint64_t tokens = tokens_of(chosen_);
  if (budget_.allows(tokens, chosen_.size())) return true;
  // What comes next may be what steps before could not use: as many as a usual step has, at least.
  const auto usual = static_cast<std::size_t>(static_cast<double>(tokens) / budget_.mean());
  take_window(std::max(kLookAhead, (pinned_ > 0 ? 4 : 1) * std::max(chosen_.size(), usual)));
  bool allowed = false;
  for (int round = 0; round < 4 && !allowed; ++round) {
    const std::size_t samples = chosen_.size();
    const double wanted = static_cast<double>(tokens) / budget_.nearest_mean(tokens, samples);
    const auto change = static_cast<std::size_t>(std::ceil(std::abs(wanted - static_cast<double>(samples))));
    if (static_cast<double>(samples) < wanted) {
      exchange_short_for_long({window_, 0}, {chosen_, pinned_}, change, sort_);
    } else {
      exchange_short_for_long({chosen_, pinned_}, {window_, 0}, change, sort_);
    }
    tokens = tokens_of(chosen_);
    allowed = budget_.allows(tokens, chosen_.size());
  }
  put_back(window_);
  return allowed;
}

// What does not fit beside outliers moves the mean: a step that leaves the budget that way is made again with
// fewer of them, as long as none of them is due.
void BlockPlanner::compose() {
  for (std::size_t most = static_cast<std::size_t>(options_.ranks);; most = std::max(pinned_ / 2, due_)) {
    left_.clear();
    chosen_.clear();
    pinned_ = 0;
    choose(most);
    pack();
    if (pinned_ <= due_ || budget_.allows(packer_->tokens(), packer_->samples())) return;
    packer_->for_each([this](const Item& item) {
      if (outliers_.is_outlier(item)) {
        outliers_.add(item);
      } else {
        left_.push_back(item);
      }
    });
    put_back(left_);
    patience_ = kPatience;
  }
}

bool BlockPlanner::is_over() const {
  if (options_.padded && !padded_.empty()) return false;
  if (fits_ && !fitted_.empty()) return false;
  if (last_) return tokens_left_ == 0;
  // Outliers that wait go on waiting in the next block.
  return static_cast<double>(tokens_left_ - outliers_.tokens()) < kLeaveOver * static_cast<double>(capacity_);
}

bool BlockPlanner::deal_step(StepPacker& packer, std::size_t& first) {
  full_step_ = tokens_left_ > capacity_;
  if (options_.padded || !full_step_ || is_over()) return false;
  packer_ = &packer;
  if (fits_) {
    next_fitted();
  } else {
    compose();
  }
  book();
  first = random_.below(static_cast<std::uint64_t>(options_.ranks));
  packer_ = &own_packer_;
  return true;
}

// The step that was packed leaves the pool.
void BlockPlanner::book() {
  put_back(left_);
  budget_.spend(packer_->tokens(), packer_->samples());
  tokens_left_ -= packer_->tokens();
}

bool BlockPlanner::next_step(StepView& step) {
  if (is_over()) return false;
  chosen_.clear();
  left_.clear();
  pinned_ = 0;
  full_step_ = tokens_left_ > capacity_;
  if (options_.padded) {
    if (padded_.empty()) {
      next_ += padded_.take(std::span(items_).subspan(next_), last_, budget_, random_);
    }
    step = padded_.next(chosen_);
    const std::uint64_t tokens = tokens_of(chosen_);
    tokens_left_ -= tokens;
    budget_.spend(tokens, chosen_.size());
    return !last_ || tokens_left_ > 0 || end_with(step);
  }
  if (fits_) {
    next_fitted();
  } else if (full_step_) {
    compose();
  } else {
    chosen_.insert(chosen_.end(), items_.begin() + static_cast<std::ptrdiff_t>(next_), items_.end());
    next_ = items_.size();
    outliers_.release(outliers_.size(), chosen_);
    pack();
  }
  book();
  packer_->exchange();
  step = packer_->finish(random_.below(static_cast<std::uint64_t>(options_.ranks)));
  return full_step_ || !last_ || tokens_left_ > 0 || end_with(step);
}

// Does with an epoch's last step as the options say. False when it is dropped.
bool BlockPlanner::end_with(StepView& step) {
  bool complete = true;
  for (std::size_t i = 0; i < step.ends.size(); ++i) {
    complete = complete && step.ends[i] > (i == 0 ? 0 : step.ends[i - 1]);
  }
  if (complete || tokens_left_ > 0 || options_.tail == Tail::fill) return true;
  if (options_.tail == Tail::drop) return false;
  if (!options_.padded) {
    packer_->go_on();
    sort_.longest_first(first_);
    // As often as it takes until each micro-batch has something.
    for (std::size_t i = 0; i < packer_->micro_batches(); ++i) {
      left_.clear();
      packer_->deal(first_, std::numeric_limits<double>::infinity(), left_);
      if (left_.size() == first_.size() || packer_->all_used()) break;
    }
    packer_->exchange();
    step = packer_->finish(0);
    return true;
  }
  const std::vector<Item> rest = chosen_;
  for (std::size_t count = step.ends.size() * 2; count > 0; --count) {
    for (std::size_t i = 0; i < count; ++i) chosen_.push_back(first_[i % first_.size()]);
    sort_.longest_first(chosen_);
    if (padded_.pack_alone(chosen_, step)) return true;
    chosen_ = rest;
  }
  return true;
}

void BlockPlanner::pack() {
  sort_.longest_first(chosen_);
  double enough = std::numeric_limits<double>::infinity();
  if (full_step_ && pinned_ > 0) {
    enough = 0;
    for (const Item& item : chosen_) enough += options_.cost.of(item.length);
    enough *= kMostBesideOutliers / options_.ranks;
  }
  packer_->clear();
  packer_->deal(chosen_, enough, left_);
  const auto least = static_cast<std::uint64_t>(kLeastFill * static_cast<double>(capacity_));
  if (full_step_) {
    const bool short_of_target = packer_->tokens() < least;
    // One sample that outweighs the other ranks' shares makes them wait anyway: they may as well be full.
    const bool waits = (short_of_target || pinned_ > 0 || chosen_.size() < 4 * packer_->micro_batches()) &&
                       packer_->greatest_is_one_sample();
    const bool few = chosen_.size() < kFewSamples * packer_->micro_batches() &&
                     packer_->micro_batches() > 1 && options_.order != Order::sequential;
    if (short_of_target && few && !waits && pinned_ == 0) {
      fit();
    } else if (short_of_target || waits) {
      top_up(waits ? capacity_ : target(), !waits);
    }
  }
}

// Where micro-batches hold so few samples that what comes next does not fill them: looks for samples that do.
void BlockPlanner::fit() {
  take_window(std::max(kFitLookAhead, 2 * chosen_.size()));
  candidates_.clear();
  for (std::size_t i = 0; i < window_.size(); ++i) {
    candidates_.push_back({static_cast<std::uint32_t>(i), window_[i].length});
  }
  sort_.longest_first(candidates_);
  const auto wanted = static_cast<std::uint64_t>(kMostFill * static_cast<double>(options_.cap));
  packer_->fit({window_, candidates_}, wanted, left_,
               [this](std::uint64_t tokens, std::size_t samples) { return budget_.allows(tokens, samples); });
  std::erase_if(window_, [](const Item& item) { return item.length == 0; });
  put_back(window_);
}

// The next step of those that are fitted together.
void BlockPlanner::next_fitted() {
  left_.clear();
  if (fitted_.empty()) {
    const std::span<const Item> pool = std::span(items_).subspan(next_);
    next_ += fitted_.take(pool, last_, budget_, random_, left_);
  }
  fitted_.next(*packer_);
}

// Beyond the target, short samples that fill what is left free must not be missing from the steps to come.
bool BlockPlanner::may_add(std::uint32_t length) const {
  const std::uint64_t tokens = packer_->tokens();
  return budget_.allows_adding(length, tokens, packer_->samples()) &&
         (tokens + length <= target() || budget_.nears(length, tokens, packer_->samples()));
}

// Looks through what comes next, longest first, for samples that fit into what room is left, up to so many
// tokens.
void BlockPlanner::top_up(std::uint64_t most, bool lengthen) {
  std::uint64_t room = packer_->most_room();
  take_window(std::max(std::min(kLookAhead, kTopUpLookAhead * chosen_.size()), chosen_.size()));
  candidates_.clear();
  for (std::size_t i = 0; i < window_.size(); ++i) {
    if (window_[i].length <= room) candidates_.push_back({static_cast<std::uint32_t>(i), window_[i].length});
  }
  sort_.longest_first(candidates_);
  for (const Item& candidate : candidates_) {
    Item& item = window_[candidate.index];
    if (item.length > room || packer_->tokens() + item.length > most || !may_add(item.length) ||
        !packer_->place_where_it_fits(item, lengthen)) {
      continue;
    }
    item.length = 0;  // gone
    room = packer_->most_room();
    if (room == 0) break;
  }
  window_.erase(
      std::remove_if(window_.begin(), window_.end(), [](const Item& item) { return item.length == 0; }),
      window_.end());
  put_back(window_);
}

double BlockPlanner::most_left() const {
  return kLeaveOver * static_cast<double>(capacity_) + static_cast<double>(outliers_.most_tokens());
}

std::vector<Item> BlockPlanner::take_left() {
  window_.clear();
  outliers_.release(outliers_.size(), window_);
  padded_.put_back(window_);
  fitted_.put_back(window_);
  put_back(window_);
  items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(next_));
  next_ = 0;
  return std::move(items_);
}

}  // namespace lockstep::data
