// Plays the nodes of a ring from a seed: the product's decisions (ring_node.h) with a simulated
// network, source, disks and clock. A seed gives the same run every time, so each failure can be played again.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::simulation {

/// A fault in the code around the decisions, planted to see that the checks find it.
enum class Planted {
  none,
  left_dropped,        ///< srun's helper does not say that a node has left, and nobody times out
  freed_early,         ///< a chunk's memory is freed before it is stored
  digest_not_checked,  ///< a receiver takes every chunk
  hand_over_lost,      ///< the predecessor never learns what it must read for its successor
  handed_over_read,    ///< after a new connection, a node reads what it has handed over
  not_asked_again,     ///< a new connection does not ask for what is missing
  chunk_lost,          ///< a received chunk is not stored
  loss_ignored,        ///< a node does nothing when its predecessor is lost
  lacks_ignored,       ///< or when its predecessor cannot send a chunk
  piece_lost,          ///< a piece of a list is not passed on
  damage_sent_on,      ///< a damaged chunk is passed on before it is checked
  read_twice           ///< a chunk that was read from the source is read again
};

struct WorldOptions {
  std::uint32_t nodes = 16;
  std::size_t chunks = 64;
  std::uint64_t seed = 0;
  bool faults = true;  ///< losses, stops, slow disks and readers, damage; else a quiet run
  Planted planted = Planted::none;

  // Of a quiet run:
  std::size_t sources = 1;                ///< the chunks are divided between them
  std::vector<std::uint32_t> holders{};   ///< nodes that have all sources
  bool rotating = false;                  ///< node s % nodes has source s
  std::optional<std::uint32_t> killed{};  ///< a node that is killed
  double killed_at = 0.25;                ///< when it has stored this share of the data

  // Seconds and bytes a second.
  double chunk_bytes = 4 << 20;
  double link = 1e9;     ///< of a node, to its successor
  double source = 1e11;  ///< all nodes together
  double reader = 1e9;   ///< one node from the source
  double disk = 1e9;
  double latency = 50e-6;  ///< of a message
  double prepare = 0.01;   ///< of one node, between the list and the chunks
  double list_bytes = 3 << 20;
};

struct WorldEnd {
  std::string problem;        ///< what a check found; "" if there is none
  double seconds = 0;         ///< of the simulated clock
  double sent_max_ratio = 0;  ///< the busiest sender: bytes ÷ data
  double source_ratio = 0;    ///< bytes from the source ÷ data
  std::size_t opens = 0;      ///< of files at the source, each counted once for each node
  std::uint64_t published_wrong = 0;
  std::uint32_t complete = 0;  ///< nodes
  std::uint32_t failed = 0;    ///< nodes that ended with a line
};

WorldEnd play(const WorldOptions& options);

}  // namespace lockstep::simulation
