// The messages between the nodes of a step and srun, and what srun's helper makes of the states of all sources on all nodes. It
// keeps a few numbers for each source, whatever the number of nodes.
//
// Threads: values, one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "staging/rendezvous/node_names.h"

namespace lockstep::transfer {

/// The state of one source on one node.
enum class SourceState : char {
  has = 'h',
  needs = 'n',
  busy = 'b',   ///< another process of the node copies it
  staged = 's'  ///< an earlier step of the job has staged it; whether the copy is still there is not known
};

/// What the ring does with a source.
enum class SourcePart : char {
  none = '-',   ///< every node has it
  held = 'h',   ///< a node has it: nobody reads it from the source
  read = 'r',   ///< the nodes read it from the source
  busy = 'b',   ///< other processes copy it on all nodes that lack it: it is left out
  unsure = 's'  ///< a node needs it, and others have only staged it: all look, and ask again
};

/// The part of one node in the ring.
struct RingPart {
  struct Peer {
    std::uint32_t node = 0;  ///< of the step
    std::string name{};
    std::vector<std::string> hosts{};
    int port = 0;
  };
  std::uint32_t nodes = 1;
  std::uint32_t place = 0;  ///< of this node
  Peer predecessor;         ///< if there are several nodes
  std::vector<SourcePart> sources;
};

/// Where a node says that others reach it: without its number.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RingPart::Peer, name, hosts, port)
nlohmann::json ring_part_json(const RingPart& part);
/// Throws Error if a field is missing or wrong.
RingPart ring_part_from(const nlohmann::json& message);

class RingStates {
 public:
  /// The states of all sources on one node, one letter each. Throws Error if nodes have different numbers of sources.
  void add(const std::string& states);
  /// `lost`: a node that was added has left since then. It may have been the only one with a source, so the nodes read.
  std::vector<SourcePart> parts(bool lost) const;

 private:
  bool any_ = false;
  std::vector<unsigned> seen_;  // by source, a bit for each state
};

/// A node introduces itself.
struct Hello {
  std::uint32_t job = 0;
  std::string step;
  std::string node;
  std::uint32_t node_id = 0;  ///< 0 to nodes - 1
  std::uint32_t nodes = 1;
  std::string node_list;          ///< all nodes in Slurm's brackets ("n[1-4]"), to name those that never came
  std::string component;          ///< of a heterogeneous step, which stages separately; else ""
  bool replaces_process = false;  ///< an earlier process of this node is stuck, and this one replaces it

  /// "JOB.STEP", or "JOB.STEP+COMPONENT".
  std::string step_name() const;
  /// The name under which the node connects to the rendezvous.
  std::string client_name() const { return fmt::format("{} {}", step_name(), node_id); }

  std::string to_text() const;
  /// Throws Error if the text is not a Hello or its numbers are impossible.
  static Hello from_text(const std::string& text);
};

/// How staging ended on one node, or on all nodes together.
struct Verdict {
  bool good = true;
  std::string why;                       ///< "" if good
  bool continues_in_background = false;  ///< the node stays for rounds
  double seconds = 0;                    ///< that staging took on a node; 0 if it staged nothing
  std::string times = {};                ///< those of all nodes, for the first one; "" if few nodes staged

  std::string to_text() const;
  static Verdict from_text(const std::string& text);
};

/// A node's contribution to a round that all nodes take part in. srun collects them and sends all of them to
/// every node. Most nodes say the same, so the answer has each contribution once, with the nodes that made it.
struct RoundMessage {
  std::string round;    ///< its name
  nlohmann::json data;  ///< not null; from srun: group_nodes()

  std::string to_text() const;
  static RoundMessage from_text(const std::string& text);
};

/// [["0-5,7", DATA], ...]: each contribution with its nodes; null for nodes that have left.
nlohmann::json group_nodes(const std::map<std::uint32_t, nlohmann::json>& data);
/// The reverse, as an object by node id. Throws Error if the text is not such a list.
nlohmann::json ungroup_nodes(const nlohmann::json& groups);

/// How the names of rounds begin that srun answers with a few numbers, not with the data of all nodes: each node contributes
/// the states of its sources and receives its part of the ring (RingStates), or the digest of what it got.
inline constexpr const char* kStatesRound = "states";
inline constexpr const char* kContentsRound = "contents";

/// Not rounds: a node tells where others reach it, or how far it is, and srun tells a node that its predecessor has left.
inline constexpr const char* kAddress = "address";
inline constexpr const char* kProgress = "progress";
inline constexpr const char* kLeft = "left";

/// A node whose successor in a ring got wrong bytes of a source, or none; and the number of the source in that ring.
using Suspect = std::pair<std::uint32_t, std::size_t>;

/// The answer to a round of contents.
struct Contents {
  bool equal = true;   ///< all digests
  bool again = false;  ///< a node still lacks sources: there is another ring
  bool lost = false;   ///< a node has left since the ring began
  std::vector<Suspect> suspects{};
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Contents, equal, again, lost, suspects)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NodeProgress, source, done, total, seconds)

/// The service of the rendezvous (secure_connection.h).
inline constexpr const char* kRendezvousService = "rendezvous";
/// The longest line that a node may send; the connection of a peer that sends more is closed. One node tells what all
/// sources are: about 130 bytes for each.
inline constexpr std::size_t kMaxLineBytes = std::size_t{8} << 20U;
/// The longest line from srun: it carries what all nodes said.
inline constexpr std::size_t kMaxServerLineBytes = std::size_t{64} << 20U;

/// The kind of a message, by its fields.
enum class Message { verdict, round, alive };
Message kind_of(const std::string& text);
/// A node that has nothing to say sends this every five seconds.
inline constexpr const char* kAlive = "{\"alive\":1}";

}  // namespace lockstep::transfer
