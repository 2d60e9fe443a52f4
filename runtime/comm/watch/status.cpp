#include "runtime/comm/watch/status.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "common/clock.h"
#include "common/error.h"
#include "runtime/comm/watch/activity.h"

namespace lockstep::comm::watch {
namespace {

class Writer {
 public:
  template <typename Number>
  void number(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void text(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    bytes_.append(text);
  }
  void status(const Status& status) {
    number(status.rank);
    number(status.state);
    number(status.number);
    number(status.lasts_ns);
    text(status.operation);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  Number number() {
    Number value{};
    const std::string_view part = take(sizeof value);
    std::memcpy(&value, part.data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(number<std::uint32_t>())); }
  Status status() {
    Status status;
    status.rank = number<std::int32_t>();
    const auto state = number<std::uint8_t>();
    if (state > static_cast<std::uint8_t>(State::gone)) fail("a rank's status is damaged");
    status.state = static_cast<State>(state);
    status.number = number<std::uint64_t>();
    status.lasts_ns = number<std::uint64_t>();
    status.operation = text();
    return status;
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view take(std::size_t size) {
    if (bytes_.size() < size) fail("a rank's status is cut short");
    const std::string_view part = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return part;
  }

  std::string_view bytes_;
};

// "0-2,4"; no more than a line holds.
std::string format_ranks(const std::vector<int>& ranks) {
  constexpr int kMaxRanges = 8;
  std::string text;
  int ranges = 0;
  for (std::size_t begin = 0; begin < ranks.size();) {
    std::size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (++ranges > kMaxRanges) return text + fmt::format(",... ({} ranks)", ranks.size());
    if (begin > 0) text += ',';
    text += std::to_string(ranks[begin]);
    if (end - begin > 1) text += fmt::format("-{}", ranks[end - 1]);
    begin = end;
  }
  return text;
}

std::string format_nodes(const Roster& roster, const std::vector<int>& ranks) {
  std::vector<int> nodes;
  nodes.reserve(ranks.size());
  for (const int rank : ranks) nodes.push_back(roster.node_of.at(static_cast<std::size_t>(rank)));
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  const auto name = [&](std::size_t index) {
    return roster.node_names.at(static_cast<std::size_t>(nodes[index]));
  };
  if (nodes.size() == 1) return name(0);
  if (nodes.size() == 2) return name(0) + " and " + name(1);
  return fmt::format("{} nodes", nodes.size());
}

std::string format_seconds_since(std::uint64_t lasts_ns) {
  const double seconds = static_cast<double>(lasts_ns) * 1e-9;
  return seconds < 9.95 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

bool is_in_operation(State state) {
  return state == State::waits || state == State::works || state == State::asked;
}

// What several ranks do alike, apart from how long.
struct Doing {
  State state;
  std::string operation;
  std::uint64_t number;

  bool operator<(const Doing& other) const {
    return std::tie(state, operation, number) < std::tie(other.state, other.operation, other.number);
  }
};

struct Group {
  std::vector<int> ranks;
  std::uint64_t shortest_ns = UINT64_MAX;
  std::uint64_t longest_ns = 0;
};

std::string format_since(const Group& group) {
  const std::string shortest = format_seconds_since(group.shortest_ns);
  const std::string longest = format_seconds_since(group.longest_ns);
  const bool alike =
      group.longest_ns - group.shortest_ns < std::max(group.longest_ns / 10, std::uint64_t{500'000'000});
  return alike ? longest : shortest + " to " + longest;
}

std::string format_doing(const Doing& doing, const Group& group, const Status& overdue) {
  const bool several = group.ranks.size() > 1;
  const auto verb = [&](const char* one, const char* many) { return several ? many : one; };
  const std::string since = format_since(group);
  switch (doing.state) {
    case State::waits:
    case State::works:
    case State::asked: {
      std::string what = doing.operation;
      if (doing.operation == overdue.operation) {
        what = doing.number == overdue.number
                   ? "the same"
                   : fmt::format("{} operation of that name ({} {}, that is its {})",
                                 doing.number < overdue.number ? "an earlier" : "a later",
                                 verb("its operation", "their operation"), doing.number, overdue.number);
      }
      if (doing.state == State::waits)
        return fmt::format("{} in {} since {}", verb("waits", "wait"), what, since);
      if (doing.state == State::works)
        return fmt::format("{} in {} since {}", verb("is", "are"), what, since);
      return fmt::format("{} asked for {} {} ago and {} not begun it", verb("has", "have"), what, since,
                         verb("has", "have"));
    }
    case State::idle:
      if (doing.number == 0) return fmt::format("{} asked for nothing yet", verb("has", "have"));
      return fmt::format("{} for nothing since {}, last did {}", verb("asks", "ask"), since, doing.operation);
    case State::left:
      return fmt::format("{} left World, last did {}", verb("has", "have"), doing.operation);
    case State::silent:
      return fmt::format("{} not answer (stopped or cut off?)", verb("does", "do"));
    case State::gone:
      return verb("is gone (its process ended)", "are gone (their processes ended)");
  }
  return {};
}

// The smaller, the more it explains.
int weight(const Doing& doing, const Status& overdue) {
  switch (doing.state) {
    case State::gone:
      return 0;
    case State::silent:
      return 1;
    case State::left:
      return 2;
    case State::idle:
      return 3;
    case State::waits:
    case State::works:
    case State::asked:
      return doing.operation == overdue.operation && doing.number == overdue.number ? 5 : 4;
  }
  return 6;
}

Doing what_it_does(const Status& status) {
  const bool known = status.state != State::silent && status.state != State::gone;
  // How many operations idle ranks did differs where they did different things; what they did last says it.
  const bool numbered = is_in_operation(status.state);
  return {status.state, known ? status.operation : std::string(),
          numbered ? status.number : static_cast<std::uint64_t>(status.number > 0)};
}

}  // namespace

std::string Roster::name(int rank) const {
  const auto node = static_cast<std::size_t>(node_of.at(static_cast<std::size_t>(rank)));
  return fmt::format("rank {} on {}", rank, node_names.at(node));
}

std::vector<int> Roster::ranks_on(int node) const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < node_of.size(); ++rank) {
    if (node_of[rank] == node) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

Status status_of_this_process(int rank) {
  const Activity activity = current_activity();
  Status status;
  status.rank = rank;
  if (activity.oldest.empty()) {
    status.state = State::idle;
    status.operation = activity.last_ended;
    status.number = activity.asked;
  } else {
    status.state = activity.waiting ? State::waits : activity.oldest_began ? State::works : State::asked;
    status.operation = activity.oldest;
    status.number = activity.oldest_number;
  }
  if (activity.since_ns > 0) status.lasts_ns = monotonic_ns() - activity.since_ns;
  return status;
}

std::string pack(const std::vector<Status>& statuses) {
  Writer writer;
  for (const Status& status : statuses) writer.status(status);
  return writer.take();
}

std::vector<Status> unpack_statuses(std::string_view bytes) {
  Reader reader(bytes);
  std::vector<Status> statuses;
  while (!reader.at_end()) statuses.push_back(reader.status());
  return statuses;
}

std::string pack(const Overdue& overdue) {
  Writer writer;
  writer.text(overdue.operation);
  writer.number(overdue.seconds);
  writer.status(overdue.status);
  return writer.take();
}

Overdue unpack_overdue(std::string_view bytes) {
  Reader reader(bytes);
  Overdue overdue;
  overdue.operation = reader.text();
  overdue.seconds = reader.number<std::uint64_t>();
  overdue.status = reader.status();
  return overdue;
}

std::string explain_overdue(const Roster& roster, const Overdue& overdue, std::vector<Status> statuses) {
  std::sort(statuses.begin(), statuses.end(),
            [](const Status& left, const Status& right) { return left.rank < right.rank; });
  std::map<Doing, Group> groups;
  for (const Status& status : statuses) {
    if (status.rank == overdue.status.rank) continue;
    Group& group = groups[what_it_does(status)];
    group.ranks.push_back(status.rank);
    group.shortest_ns = std::min(group.shortest_ns, status.lasts_ns);
    group.longest_ns = std::max(group.longest_ns, status.lasts_ns);
  }
  std::vector<const std::pair<const Doing, Group>*> order;
  order.reserve(groups.size());
  for (const auto& entry : groups) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [&](const auto* left, const auto* right) {
    const int left_weight = weight(left->first, overdue.status);
    const int right_weight = weight(right->first, overdue.status);
    return std::tie(left_weight, left->second.ranks) < std::tie(right_weight, right->second.ranks);
  });

  std::string line = fmt::format("{}: {} did not end within {} s (LOCKSTEP_TIMEOUT)",
                                 roster.name(overdue.status.rank), overdue.operation, overdue.seconds);
  const Status& waiting = overdue.status;
  if (!waiting.operation.empty() && waiting.operation != overdue.operation &&
      is_in_operation(waiting.state)) {
    line += fmt::format(", it is after {}", waiting.operation);
  }
  constexpr std::size_t kMaxGroups = 12;
  std::size_t shown = 0;
  std::size_t not_shown = 0;
  for (const auto* entry : order) {
    const auto& [doing, group] = *entry;
    if (shown == kMaxGroups) {
      not_shown += group.ranks.size();
      continue;
    }
    line += fmt::format("{} rank{} {} on {} {}", shown++ == 0 ? ":" : ";", group.ranks.size() == 1 ? "" : "s",
                        format_ranks(group.ranks), format_nodes(roster, group.ranks),
                        format_doing(doing, group, overdue.status));
  }
  if (not_shown > 0) line += fmt::format("; {} other ranks do other things", not_shown);
  return line;
}

std::string explain_gone(const Roster& roster, int rank, const Status& mine) {
  std::string line = fmt::format("{} is gone (its process ended)", roster.name(rank));
  if (is_in_operation(mine.state)) {
    line += fmt::format("; {} is in {}", roster.name(mine.rank), mine.operation);
  } else if (mine.number > 0) {
    line += fmt::format("; {} last did {}", roster.name(mine.rank), mine.operation);
  }
  return line;
}

}  // namespace lockstep::comm::watch
