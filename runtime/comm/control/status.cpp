#include "runtime/comm/control/status.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "common/clock.h"
#include "common/error.h"
#include "common/process.h"
#include "runtime/comm/control/activity.h"
#include "runtime/comm/control/sockets.h"

namespace lockstep::comm::control {
namespace {

nlohmann::json fields_of(const Status& status) {
  return {status.rank, static_cast<int>(status.state), status.number, status.duration_ns, status.operation};
}

Status status_from(const nlohmann::json& fields) {
  const int state = fields.at(1);
  if (state < 0 || state > static_cast<int>(RankState::ended)) fail("a rank's status is damaged");
  return {.rank = fields.at(0),
          .state = static_cast<RankState>(state),
          .number = fields.at(2),
          .duration_ns = fields.at(3),
          .operation = fields.at(4)};
}

// As MessagePack.
std::string bytes_of(const nlohmann::json& message) {
  std::string bytes;
  nlohmann::json::to_msgpack(message, bytes);
  return bytes;
}

template <typename Read>
auto read_message(std::string_view bytes, const Read& read) {
  try {
    return read(nlohmann::json::from_msgpack(bytes.begin(), bytes.end()));
  } catch (const nlohmann::json::exception& error) {
    fail("a rank's status is damaged: {}", error.what());
  }
}

// "0-2,4"; at most 8 ranges, so that a line stays readable.
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

std::string format_duration(std::uint64_t duration_ns) {
  const double seconds = static_cast<double>(duration_ns) * 1e-9;
  return seconds < 9.95 ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

// The part of a status that is equal for ranks that do the same.
struct SharedState {
  RankState state;
  std::string operation;
  std::uint64_t number;

  bool operator<(const SharedState& other) const {
    return std::tie(state, operation, number) < std::tie(other.state, other.operation, other.number);
  }
};

struct RankGroup {
  std::vector<int> ranks;
  std::uint64_t shortest_ns = UINT64_MAX;
  std::uint64_t longest_ns = 0;
};

std::string format_durations(const RankGroup& group) {
  const std::string shortest = format_duration(group.shortest_ns);
  const std::string longest = format_duration(group.longest_ns);
  const bool alike =
      group.longest_ns - group.shortest_ns < std::max(group.longest_ns / 10, std::uint64_t{500'000'000});
  return alike ? longest : shortest + " to " + longest;
}

std::string format_state(const SharedState& shared, const RankGroup& group, const Status& overdue) {
  const bool several = group.ranks.size() > 1;
  const auto verb = [&](const char* one, const char* many) { return several ? many : one; };
  const std::string time = format_durations(group);
  switch (shared.state) {
    case RankState::waits:
    case RankState::works:
    case RankState::asked: {
      std::string what = shared.operation;
      if (shared.operation == overdue.operation) {
        what = shared.number == overdue.number
                   ? "the same operation"
                   : fmt::format("{} operation of this name (its number is {}, not {})",
                                 shared.number < overdue.number ? "an earlier" : "a later", shared.number,
                                 overdue.number);
      }
      if (shared.state == RankState::waits)
        return fmt::format("{} waited in {} for {}", verb("has", "have"), what, time);
      if (shared.state == RankState::works)
        return fmt::format("{} been in {} for {}", verb("has", "have"), what, time);
      return fmt::format("called {} {} ago and {} not begun it", what, time, verb("has", "have"));
    }
    case RankState::idle:
      if (shared.number == 0) return fmt::format("{} called no operation yet", verb("has", "have"));
      return fmt::format("{} called no operation for {} ({} last operation: {})", verb("has", "have"), time,
                         verb("its", "their"), shared.operation);
    case RankState::left:
      return fmt::format("{} left World ({} last operation: {})", verb("has", "have"), verb("its", "their"),
                         shared.operation);
    case RankState::silent:
      return fmt::format("{} not answer (stopped or cut off?)", verb("does", "do"));
    case RankState::ended:
      return verb("is gone (its process ended)", "are gone (their processes ended)");
  }
  return {};
}

// Sorts the states: the likeliest cause of an overdue operation gets the lowest number.
int order_of(const SharedState& shared, const Status& overdue) {
  switch (shared.state) {
    case RankState::ended:
      return 0;
    case RankState::silent:
      return 1;
    case RankState::left:
      return 2;
    case RankState::idle:
      return 3;
    case RankState::waits:
    case RankState::works:
    case RankState::asked:
      return shared.operation == overdue.operation && shared.number == overdue.number ? 5 : 4;
  }
  return 6;
}

SharedState shared_state(const Status& status) {
  const bool known = status.state != RankState::silent && status.state != RankState::ended;
  // The numbers of idle ranks may differ; only their last operation is compared.
  const bool numbered = is_in_operation(status.state);
  return {status.state, known ? status.operation : std::string(),
          numbered ? status.number : static_cast<std::uint64_t>(status.number > 0)};
}

// The end of a line about another rank: this rank's operation.
std::string continuation(const Roster& roster, const Status& mine) {
  if (is_in_operation(mine.state))
    return fmt::format("; {} is in {}", roster.name(mine.rank), mine.operation);
  if (mine.number > 0)
    return fmt::format("; the last operation of {} was {}", roster.name(mine.rank), mine.operation);
  return "";
}

}  // namespace

bool is_in_operation(RankState state) {
  return state == RankState::waits || state == RankState::works || state == RankState::asked;
}

std::string Roster::name(int rank) const {
  const auto node = static_cast<std::size_t>(node_of.at(static_cast<std::size_t>(rank)));
  return rank_name(rank, node_names.at(node));
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
    status.state = RankState::idle;
    status.operation = activity.last_ended;
    status.number = activity.asked;
  } else {
    status.state = activity.waiting        ? RankState::waits
                   : activity.oldest_began ? RankState::works
                                           : RankState::asked;
    status.operation = activity.oldest;
    status.number = activity.oldest_number;
  }
  if (activity.since_ns > 0) status.duration_ns = monotonic_ns() - activity.since_ns;
  return status;
}

std::string pack(const std::vector<Status>& statuses) {
  nlohmann::json message = nlohmann::json::array();
  for (const Status& status : statuses) message.push_back(fields_of(status));
  return bytes_of(message);
}

std::vector<Status> unpack_statuses(std::string_view bytes) {
  return read_message(bytes, [](const nlohmann::json& message) {
    std::vector<Status> statuses;
    for (const auto& fields : message) statuses.push_back(status_from(fields));
    return statuses;
  });
}

std::string pack(const Overdue& overdue) {
  return bytes_of({overdue.operation, overdue.seconds, fields_of(overdue.status)});
}

Overdue unpack_overdue(std::string_view bytes) {
  return read_message(bytes, [](const nlohmann::json& message) {
    return Overdue{
        .operation = message.at(0), .seconds = message.at(1), .status = status_from(message.at(2))};
  });
}

std::string explain_overdue(const Roster& roster, const Overdue& overdue, std::vector<Status> statuses) {
  std::sort(statuses.begin(), statuses.end(),
            [](const Status& left, const Status& right) { return left.rank < right.rank; });
  std::map<SharedState, RankGroup> groups;
  for (const Status& status : statuses) {
    if (status.rank == overdue.status.rank) continue;
    RankGroup& group = groups[shared_state(status)];
    group.ranks.push_back(status.rank);
    group.shortest_ns = std::min(group.shortest_ns, status.duration_ns);
    group.longest_ns = std::max(group.longest_ns, status.duration_ns);
  }
  std::vector<const std::pair<const SharedState, RankGroup>*> order;
  order.reserve(groups.size());
  for (const auto& entry : groups) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [&](const auto* left, const auto* right) {
    const int left_order = order_of(left->first, overdue.status);
    const int right_order = order_of(right->first, overdue.status);
    return std::tie(left_order, left->second.ranks) < std::tie(right_order, right->second.ranks);
  });

  std::string line = fmt::format("{}: {} did not end within {} s (LOCKSTEP_TIMEOUT)",
                                 roster.name(overdue.status.rank), overdue.operation, overdue.seconds);
  const Status& waiting = overdue.status;
  if (!waiting.operation.empty() && waiting.operation != overdue.operation &&
      is_in_operation(waiting.state)) {
    line += fmt::format(", queued after {}", waiting.operation);
  }
  constexpr std::size_t kMaxGroups = 12;
  std::size_t shown = 0;
  std::size_t not_shown = 0;
  for (const auto* entry : order) {
    const auto& [shared, group] = *entry;
    if (shown == kMaxGroups) {
      not_shown += group.ranks.size();
      continue;
    }
    line += fmt::format("{} rank{} {} on {} {}", shown++ == 0 ? ":" : ";", group.ranks.size() == 1 ? "" : "s",
                        format_ranks(group.ranks), format_nodes(roster, group.ranks),
                        format_state(shared, group, overdue.status));
  }
  if (not_shown > 0) line += fmt::format("; {} other ranks do other things", not_shown);
  return line;
}

std::string explain_lost_rank(const Roster& roster, int rank, const Status& mine) {
  return fmt::format("{} is gone (its process ended){}", roster.name(rank), continuation(roster, mine));
}

std::string explain_unreachable_rank(const Roster& roster, int rank, const Status& mine) {
  return fmt::format("{} has not answered for {} s (its node lost power, or is cut off){}", roster.name(rank),
                     kUnreachableTime.count(), continuation(roster, mine));
}

}  // namespace lockstep::comm::control
