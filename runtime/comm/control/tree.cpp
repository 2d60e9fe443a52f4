#include "runtime/comm/control/tree.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "common/error.h"
#include "common/leaf/descriptors.h"
#include "common/sockets.h"
#include "runtime/comm/control/sockets.h"
#include "runtime/comm/timeout.h"

namespace lockstep::comm::control {
namespace {

using std::chrono::milliseconds;

// How the other ranks reach this one.
struct ContactInfo {
  std::int32_t node = 0;
  std::array<char, 64> node_name{};
  Key key{};  ///< of this rank's listeners, and the name of the local one
  Addresses addresses;
};

// Which connections a rank could make.
struct ConnectOutcome {
  bool local = true;    ///< within its node
  bool network = true;  ///< to the other nodes
  std::array<char, 160> why{};

  void fail(bool ConnectOutcome::*what, const std::string& reason) {
    this->*what = false;
    std::snprintf(why.data(), why.size(), "%s", reason.c_str());
  }
};

template <typename Record>
std::vector<Record> exchange(const AllGather& all_gather, const Record& mine, int ranks) {
  std::vector<Record> all(static_cast<std::size_t>(ranks));
  all_gather(&mine, sizeof mine, all.data());
  return all;
}

Roster make_roster(const std::vector<ContactInfo>& contacts, int nodes) {
  Roster roster;
  roster.node_names.resize(static_cast<std::size_t>(nodes));
  for (const ContactInfo& contact : contacts) {
    roster.node_of.push_back(contact.node);
    roster.node_names.at(static_cast<std::size_t>(contact.node)) = contact.node_name.data();
  }
  return roster;
}

// Accepts the expected ranks from both listeners, for 5 s.
void accept_children(const UniqueFd& local, const UniqueFd& network, const Key& key,
                     std::vector<int> expected, std::vector<Child>& into, ConnectOutcome& outcome) {
  constexpr milliseconds kIntroductionTime{1000};
  OperationTimeout timeout(std::chrono::seconds(5));
  while (!expected.empty() && !timeout.expired()) {
    std::array<pollfd, 2> waits{pollfd{local.get(), POLLIN, 0}, pollfd{network.get(), POLLIN, 0}};
    if (::poll(waits.data(), waits.size(), timeout.next_check_ms()) <= 0) continue;
    for (const pollfd& wait : waits) {
      if ((wait.revents & POLLIN) == 0) continue;
      UniqueFd socket(::accept4(wait.fd, nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket && no_descriptor_left(errno)) {
        return outcome.fail(wait.fd == local.get() ? &ConnectOutcome::local : &ConnectOutcome::network,
                            kNoDescriptorLeft);
      }
      if (!socket) continue;
      if (wait.fd == network.get()) notice_dead_peer(socket, kUnreachableTime);
      const int rank = receive_introduction(socket, key, wait.fd == local.get(), kIntroductionTime);
      const auto found = std::find(expected.begin(), expected.end(), rank);
      if (found == expected.end() || !accept_introduction(socket)) continue;
      expected.erase(found);
      into.push_back({rank, Connection(std::move(socket))});
    }
  }
}

class TreeBuilder {
 public:
  TreeBuilder(const RankInfo& place, const AllGather& all_gather) : place_(place), all_gather_(all_gather) {
    tree_.rank = place.rank;
  }

  std::optional<Tree> build() {
    ConnectOutcome outcome;
    const ContactInfo mine = listen(outcome);
    const auto contacts = exchange(all_gather_, mine, place_.size);
    tree_.roster = make_roster(contacts, place_.nodes);
    tree_.node_key = contacts.at(static_cast<std::size_t>(tree_.roster.ranks_on(place_.node).front())).key;
    connect(contacts, outcome);
    local_.reset();
    network_.reset();
    return finish(exchange(all_gather_, outcome, place_.size));
  }

 private:
  bool is_first() const { return place_.local_rank == 0; }
  bool is_root() const { return place_.rank == 0; }

  ContactInfo listen(ConnectOutcome& outcome) {
    ContactInfo contact;
    contact.node = place_.node;
    std::snprintf(contact.node_name.data(), contact.node_name.size(), "%s", place_.node_name.c_str());
    if (!is_first()) return contact;
    contact.key = random_key();
    if (place_.local_size > 1) {
      local_ = listen_locally(contact.key);
      if (!local_) outcome.fail(&ConnectOutcome::local, "cannot listen locally: " + errno_text(errno));
    }
    if (!nodes_below(place_.node, place_.nodes).empty()) {
      network_ = listen_on_network(contact.addresses);
      if (!network_)
        outcome.fail(&ConnectOutcome::network, "cannot listen on the network: " + errno_text(errno));
    }
    return contact;
  }

  void connect(const std::vector<ContactInfo>& contacts, ConnectOutcome& outcome) {
    if (!is_first()) {
      tree_.parent = tree_.roster.ranks_on(place_.node).front();
      UniqueFd socket = connect_locally(tree_.node_key);
      const std::string why = errno_text(errno);
      // The parent may itself still wait for the node above.
      if (socket && introduce(socket, tree_.node_key, place_.rank, milliseconds(15'000))) {
        tree_.up.emplace(std::move(socket));
      } else {
        outcome.fail(&ConnectOutcome::local, fmt::format("no local connection to rank {}: {}", tree_.parent,
                                                         socket ? "it does not answer" : why));
      }
      return;
    }
    if (!is_root()) {
      std::string why;
      const int parent = tree_.roster.ranks_on(node_above(place_.node)).front();
      const ContactInfo& above = contacts.at(static_cast<std::size_t>(parent));
      UniqueFd socket = connect_on_network(above.addresses, above.key, place_.rank, why);
      if (socket) {
        tree_.parent = parent;
        tree_.up.emplace(std::move(socket));
      } else {
        outcome.fail(&ConnectOutcome::network, fmt::format("no connection to rank {}: {}", parent, why));
      }
    }
    std::vector<int> expected = tree_.roster.ranks_on(place_.node);
    expected.erase(expected.begin());  // this rank
    for (const int node : nodes_below(place_.node, place_.nodes))
      expected.push_back(tree_.roster.ranks_on(node).front());
    // A rank that cannot connect reports that in its own outcome.
    accept_children(local_, network_, tree_.node_key, std::move(expected), tree_.down, outcome);
  }

  std::optional<Tree> finish(const std::vector<ConnectOutcome>& outcomes) {
    const auto missing = [&](bool ConnectOutcome::*what) {
      return std::find_if(outcomes.begin(), outcomes.end(),
                          [what](const ConnectOutcome& outcome) { return !(outcome.*what); });
    };
    const auto say = [&](auto failed, const char* consequence) {
      if (!is_root()) return;
      std::fputs(fmt::format("lockstep: {}: {}; {}\n",
                             tree_.roster.name(static_cast<int>(failed - outcomes.begin())),
                             failed->why.data(), consequence)
                     .c_str(),
                 stderr);
    };
    if (const auto failed = missing(&ConnectOutcome::local); failed != outcomes.end()) {
      say(failed, "a rank that hangs or ends is noticed only when other ranks time out");
      return std::nullopt;
    }
    if (const auto failed = missing(&ConnectOutcome::network); failed != outcomes.end()) {
      say(failed, "a rank that hangs or ends is reported only on its own node");
      tree_.up.reset();
      if (is_first()) tree_.parent = -1;
      std::erase_if(tree_.down, [&](const Child& child) {
        return tree_.roster.node_of.at(static_cast<std::size_t>(child.rank)) != place_.node;
      });
    }
    return std::move(tree_);
  }

  const RankInfo& place_;
  const AllGather& all_gather_;
  UniqueFd local_;
  UniqueFd network_;
  Tree tree_;
};

}  // namespace

milliseconds answer_time(const Tree& tree) {
  if (tree.parent < 0) return milliseconds(1500);
  const int node = tree.roster.node_of.at(static_cast<std::size_t>(tree.rank));
  const bool alone = nodes_below(node, static_cast<int>(tree.roster.node_names.size())).empty();
  return milliseconds(alone ? 1000 : 1250);
}

std::chrono::milliseconds verdict_delay(const Tree& tree) {
  const auto& node_of = tree.roster.node_of;
  const int node = node_of.at(static_cast<std::size_t>(tree.rank));
  if (node == 0) return milliseconds(tree.rank == tree.roster.ranks_on(0).at(1) ? 0 : 100);
  const bool alone = std::count(node_of.begin(), node_of.end(), 0) == 1;  // rank 0 on its node
  if (tree.parent == 0) return milliseconds(node == 1 ? (alone ? 0 : 250) : 500);
  return milliseconds(600);
}

std::vector<int> nodes_below(int node, int nodes) {
  std::vector<int> below;
  for (int next = node * kNodesBelow + 1; next <= (node + 1) * kNodesBelow && next < nodes; ++next)
    below.push_back(next);
  return below;
}

std::vector<int> ranks_behind(const Tree& tree, int child) {
  const auto& node_of = tree.roster.node_of;
  const int node = node_of.at(static_cast<std::size_t>(child));
  if (node == node_of.at(static_cast<std::size_t>(tree.rank))) return {child};
  std::vector<int> ranks;
  std::vector<int> nodes{node};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto of_node = tree.roster.ranks_on(nodes[i]);
    ranks.insert(ranks.end(), of_node.begin(), of_node.end());
    // One at a time: GCC 14 reports an overflow in insert() of a range that cannot happen.
    for (const int below : nodes_below(nodes[i], static_cast<int>(tree.roster.node_names.size())))
      nodes.push_back(below);
  }
  return ranks;
}

std::optional<Tree> build_tree(const RankInfo& place, const AllGather& all_gather) {
  return TreeBuilder(place, all_gather).build();
}

}  // namespace lockstep::comm::control
