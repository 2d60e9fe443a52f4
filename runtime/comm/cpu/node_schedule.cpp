#include "runtime/comm/cpu/node_schedule.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace lockstep::comm::cpu {
namespace {

constexpr int kMaxFactor = 16;
// The price of one more message in a round, and of a surplus node, relative to a round's latency.
constexpr double kMessage = 1.0 / 8;
constexpr double kSurplus = 0.5;

// A round takes so many times the latency: its messages are posted, and their end is noticed while other operations are
// polled too. Measured between two nodes.
constexpr double kRound = 2;

constexpr std::size_t kMaxSegment = std::size_t{1} << 20;
// With many nodes segments grow, so that no part of one becomes smaller than this.
constexpr std::size_t kMinPart = std::size_t{1} << 10;

double price_of(int factor) {
  return 1 + kMessage * (factor - 1);
}

struct Factors {
  double price = std::numeric_limits<double>::infinity();
  std::vector<int> factors;  // largest first
};

// The cheapest factors of `nodes`; an infinite price if a prime factor is too large.
Factors factors_of(int nodes, int largest = kMaxFactor) {
  if (nodes == 1) return {.price = 0, .factors = {}};
  Factors best;
  for (int factor = std::min(largest, nodes); factor > 1; --factor) {
    if (nodes % factor != 0) continue;
    Factors rest = factors_of(nodes / factor, factor);
    if (rest.price + price_of(factor) >= best.price) continue;
    best = {.price = rest.price + price_of(factor), .factors = {factor}};
    best.factors.insert(best.factors.end(), rest.factors.begin(), rest.factors.end());
  }
  return best;
}

struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// A part of a range. Parts begin at multiples of `line` elements from its begin.
Range part_of(Range range, int part, int parts, std::size_t line) {
  const auto at = [&](int which) {
    if (which == parts) return range.end;
    const std::size_t count = range.end - range.begin;
    return range.begin +
           count * static_cast<std::size_t>(which) / static_cast<std::size_t>(parts) / line * line;
  };
  return {at(part), at(part + 1)};
}

// The length of the fewest equal parts that are not longer than `longest`, rounded up to cache lines.
std::size_t part_of_bytes(std::size_t bytes, std::size_t longest) {
  const std::size_t parts = std::max<std::size_t>(1, (bytes + longest - 1) / longest);
  return ((bytes + parts - 1) / parts + 63) / 64 * 64;
}

void add(std::vector<Round::Message>& messages, int peer, Range range) {
  if (range.end > range.begin) messages.push_back({peer, range.begin, range.end - range.begin});
}

// The nodes that differ from a node in one digit.
struct Group {
  int first = 0;   // node with digit 0
  int stride = 1;  // from one digit to the next
  int size = 1;
  int digit = 0;     // of this node
  int surplus = -1;  // the surplus node that joins, if any

  int node(int of_digit) const { return first + of_digit * stride; }
  // The k-th digit after the own one. Sends go in this order: else all nodes of a group would send to its first one at the
  // same time.
  int after(int k) const { return (digit + k) % size; }
};

// Surplus nodes join the groups with the highest numbers: they are nearest. None joins the first group. Otherwise node 0
// would expect data of the last node together with its request, and a surplus node sends none with it.
int group_of_surplus(const NodeGrid& grid, int surplus_index) {
  const int groups = grid.regular() / grid.factors.front();
  return groups - 1 - surplus_index % groups;
}

std::vector<Group> groups_of(const NodeGrid& grid, int node) {
  std::vector<Group> groups;
  int stride = 1;
  for (const int factor : grid.factors) {
    const int digit = node / stride % factor;
    groups.push_back({.first = node - digit * stride, .stride = stride, .size = factor, .digit = digit});
    stride *= factor;
  }
  for (int index = 0; index < grid.surplus(); ++index) {
    if (group_of_surplus(grid, index) == node / grid.factors.front()) {
      groups.front().surplus = grid.regular() + index;
    }
  }
  return groups;
}

Round reduce_whole(const Group& group, Range all) {
  Round round{.sends = {}, .receives = {}, .reduces = true, .begin = all.begin, .count = all.end - all.begin};
  for (int digit = 0; digit < group.size; ++digit) {
    if (digit == group.digit) {
      round.before = round.receives.size();
    } else {
      add(round.receives, group.node(digit), all);
    }
  }
  for (int k = 1; k < group.size; ++k) add(round.sends, group.node(group.after(k)), all);
  if (group.surplus >= 0) add(round.receives, group.surplus, all);
  return round;
}

Round reduce_slices(const Group& group, Range range, std::size_t line) {
  const Range mine = part_of(range, group.digit, group.size, line);
  Round round{
      .sends = {}, .receives = {}, .reduces = true, .begin = mine.begin, .count = mine.end - mine.begin};
  for (int digit = 0; digit < group.size; ++digit) {
    if (digit == group.digit) {
      round.before = round.receives.size();
    } else {
      add(round.receives, group.node(digit), mine);
    }
  }
  for (int k = 1; k < group.size; ++k) {
    const int digit = group.after(k);
    add(round.sends, group.node(digit), part_of(range, digit, group.size, line));
  }
  if (group.surplus >= 0) add(round.receives, group.surplus, mine);
  return round;
}

Round gather_slices(const Group& group, Range range, std::size_t line) {
  Round round;
  const Range mine = part_of(range, group.digit, group.size, line);
  for (int digit = 0; digit < group.size; ++digit) {
    if (digit == group.digit) continue;
    add(round.receives, group.node(digit), part_of(range, digit, group.size, line));
  }
  for (int k = 1; k < group.size; ++k) add(round.sends, group.node(group.after(k)), mine);
  if (group.surplus >= 0) add(round.sends, group.surplus, mine);
  return round;
}

std::vector<Round> surplus_schedule(const NodeGrid& grid, int node, Range all, ScheduleForm form,
                                    std::size_t line) {
  const int factor = grid.factors.front();
  const int first = group_of_surplus(grid, node - grid.regular()) * factor;
  Round give;
  Round get;
  for (int digit = 0; digit < factor; ++digit) {
    const Range part = part_of(all, digit, factor, line);
    add(give.sends, first + digit, form == ScheduleForm::whole ? all : part);
    if (form == ScheduleForm::slices) add(get.receives, first + digit, part);
  }
  if (form == ScheduleForm::whole) add(get.receives, first, all);
  return {std::move(give), std::move(get)};
}

// Divides the elements among the nodes of each dimension and reduces them, or gathers them in reverse order.
void add_rounds(std::vector<Round>& rounds, const std::vector<Group>& groups, Range range, std::size_t line,
                bool reduces) {
  std::vector<Range> ranges;  // what the group of each dimension divides
  for (const Group& group : groups) {
    ranges.push_back(range);
    if (reduces) rounds.push_back(reduce_slices(group, range, line));
    range = part_of(range, group.digit, group.size, line);
  }
  for (std::size_t dimension = groups.size(); !reduces && dimension-- > 0;) {
    rounds.push_back(gather_slices(groups[dimension], ranges[dimension], line));
  }
}

std::vector<Round> block_rounds(const NodeGrid& grid, int node, std::size_t count, bool reduces) {
  std::vector<Round> rounds;
  if (count == 0) return rounds;
  add_rounds(rounds, groups_of(grid, node), {0, static_cast<std::size_t>(grid.nodes) * count}, count,
             reduces);
  return rounds;
}

}  // namespace

int NodeGrid::regular() const {
  return std::accumulate(factors.begin(), factors.end(), 1, std::multiplies<>());
}

NodeGrid grid_of(int nodes) {
  Factors best;
  // A group takes at most one surplus node and the first group none, so more than half of the nodes are regular.
  for (int regular = nodes; regular > nodes / 2; --regular) {
    Factors found = factors_of(regular);
    const int surplus = nodes - regular;
    if (surplus > 0) {
      if (found.factors.empty() || surplus >= regular / found.factors.front()) continue;
      found.price += kSurplus;
    }
    if (found.price < best.price) best = std::move(found);
    // Fewer regular nodes are cheaper by a small amount at best; enough to skip large primes.
    if (nodes - regular > 64) break;
  }
  return {.nodes = nodes, .factors = std::move(best.factors)};
}

std::vector<Round> schedule_of(const NodeGrid& grid, int node, std::size_t count, ScheduleForm form,
                               DataType type) {
  const Range all{0, count};
  const std::size_t line = 64 / size_of(type);  // cache lines, as part_begin()
  if (node >= grid.regular()) return surplus_schedule(grid, node, all, form, line);
  const auto groups = groups_of(grid, node);
  std::vector<Round> rounds;
  if (form == ScheduleForm::whole) {
    for (const Group& group : groups) rounds.push_back(reduce_whole(group, all));
    if (!groups.empty() && groups.front().surplus >= 0 && groups.front().digit == 0) {
      Round give;
      add(give.sends, groups.front().surplus, all);
      rounds.push_back(std::move(give));
    }
    return rounds;
  }
  add_rounds(rounds, groups, all, line, true);
  add_rounds(rounds, groups, all, line, false);
  return rounds;
}

NetworkUse use_of(const std::vector<Round>& rounds) {
  NetworkUse use;
  std::vector<int> peers;
  for (const Round& round : rounds) {
    use.rounds += round.sends.empty() && round.receives.empty() ? 0 : 1;
    for (const auto& message : round.sends) peers.push_back(message.peer);
    for (const auto& message : round.receives) peers.push_back(message.peer);
  }
  std::sort(peers.begin(), peers.end());
  use.peers = static_cast<int>(std::unique(peers.begin(), peers.end()) - peers.begin());
  return use;
}

NodeGrid full_grid_of(int nodes) {
  NodeGrid grid = grid_of(nodes);  // if possible, the order of summation of an all-reduce
  if (grid.surplus() > 0) grid.factors = factors_of(nodes, nodes).factors;
  return grid;
}

int block_of(const NodeGrid& grid, int node) {
  int block = 0;
  for (const Group& group : groups_of(grid, node)) block = block * group.size + group.digit;
  return block;
}

std::vector<Round> reduce_scatter_schedule_of(const NodeGrid& grid, int node, std::size_t count) {
  return block_rounds(grid, node, count, true);
}

std::vector<Round> all_gather_schedule_of(const NodeGrid& grid, int node, std::size_t count) {
  return block_rounds(grid, node, count, false);
}

ExchangePlan plan_of(const NodeGrid& grid, std::size_t bytes, const NetworkCost& cost) {
  double copies = 0;  // of the buffer, sent in the whole form
  for (const int factor : grid.factors) copies += factor - 1;
  const std::size_t message = bytes <= kShortOperation ? cost.short_message_bytes : cost.message_bytes;
  const auto group = static_cast<std::size_t>(grid.factors.empty() ? 1 : grid.factors.front());
  const auto size = static_cast<double>(bytes);
  const auto dimensions = static_cast<double>(grid.factors.size());
  const double parts = 1 - 1.0 / grid.regular();
  // The longest messages of a segment, those of its first round, have at most the best length.
  const std::size_t whole_segment = part_of_bytes(bytes, message);
  const std::size_t slices_segment = part_of_bytes(
      bytes,
      std::max(std::min(kMaxSegment, group * message), kMinPart * static_cast<std::size_t>(grid.nodes)));
  const auto request = [&](std::size_t first) { return first > kMaxRiding ? cost.latency : 0; };
  const double whole = request(whole_segment) + dimensions * kRound * cost.latency +
                       copies * size * (cost.per_byte + cost.sum_per_byte);
  const double slices = request(slices_segment / group) + 2 * dimensions * kRound * cost.latency +
                        parts * size * (2 * cost.per_byte + cost.sum_per_byte);
  if (bytes <= kMaxSegment && whole <= slices) return {ScheduleForm::whole, whole_segment};
  return {ScheduleForm::slices, slices_segment};
}

}  // namespace lockstep::comm::cpu
