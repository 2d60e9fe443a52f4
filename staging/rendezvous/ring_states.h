// What srun's helper makes of the states of all sources on all nodes: one ring of the nodes, and whether a node has each
// source. It keeps a few numbers for each source, whatever the number of nodes.
//
// Threads: values, one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

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

nlohmann::json to_json(const RingPart& part);
/// Where a node says that others reach it, without its number. Throws nlohmann::json::exception.
RingPart::Peer ring_peer_from(const nlohmann::json& message);
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

}  // namespace lockstep::transfer
