// Which nodes of a step pass which sources to each other, kept by srun's helper. Each node says for every source whether
// it has it, needs it, or waits for another process that copies it there. Sources with the same nodes form a chain: a
// ring of these nodes in their order. The helper tells each node only its own part, and the next predecessor if one is
// lost, so that the messages for a node grow with the number of sources and not with the number of nodes.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::transfer {

/// The state of one source on one node.
enum class SourceState : char {
  has = 'h',
  needs = 'n',
  busy = 'b',  ///< another process of the node copies it
};

/// A node of a chain.
struct ChainNode {
  std::uint32_t node = 0;   ///< of the step
  std::uint32_t place = 0;  ///< in the chain
};

/// The part of one node in one chain. A node for which another process copies the sources of the chain is not in the ring,
/// but gets them from a node of it if that copy never comes.
struct ChainPart {
  std::size_t chain = 0;
  std::vector<std::size_t> sources;  ///< that some node needs
  std::vector<bool> held;            ///< for each of them: a node has it, so nobody reads it from the source
  std::uint32_t nodes = 0;           ///< in the ring
  std::uint32_t place = 0;           ///< of this node; `nodes` if it is not in the ring
  bool lists = false;  ///< this node makes the lists of files; the others get them along the chain
  std::optional<ChainNode> predecessor;  ///< none if the node is alone

  bool in_ring() const { return place < nodes; }
};

/// After a predecessor was lost.
struct NextPredecessor {
  std::optional<ChainNode> predecessor;     ///< none if no node is left
  bool lists = false;                       ///< no node is left before this one that could make the lists
  std::vector<std::size_t> without_holder;  ///< sources of the chain that only lost nodes had
};

nlohmann::json to_json(const std::vector<ChainPart>& parts);
nlohmann::json to_json(const NextPredecessor& next);
/// Throw Error if a field is missing or wrong.
std::vector<ChainPart> chain_parts_from(const nlohmann::json& message);
NextPredecessor next_predecessor_from(const nlohmann::json& message);

class ChainDirectory {
 public:
  /// `states` has a SourceState for each source, by node. Throws Error if the nodes have different numbers of sources.
  explicit ChainDirectory(const std::map<std::uint32_t, std::string>& states);

  std::vector<ChainPart> parts_of(std::uint32_t node) const;

  /// For a node whose predecessor is lost. Throws Error if the chain does not exist.
  NextPredecessor next(std::size_t chain, std::uint32_t node,
                       const std::function<bool(std::uint32_t)>& is_lost) const;

 private:
  struct Chain {
    std::vector<std::uint32_t> nodes;
    std::vector<std::size_t> sources;
    std::vector<std::vector<std::uint32_t>> holders;  // of each source
  };

  std::optional<ChainNode> predecessor(const Chain& chain, std::uint32_t node,
                                       const std::function<bool(std::uint32_t)>& is_lost) const;

  std::vector<Chain> chains_;
};

}  // namespace lockstep::transfer
