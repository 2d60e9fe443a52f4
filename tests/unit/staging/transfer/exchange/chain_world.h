// Nodes of a chain in one process: the real exchange and rendezvous over loopback, with data that is computed and a source
// that counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "staging/transfer/exchange/exchange.h"
#include "staging/transfer/exchange/subscription.h"

namespace lockstep::transfer {

struct ChainOptions {
  std::uint32_t nodes = 4;
  std::vector<std::uint64_t> files;  ///< their sizes
  std::size_t sources = 1;           ///< the files are divided between them, in order
  std::uint32_t chunk_bytes = 4096;
  std::size_t lanes = 1;
  std::set<std::uint32_t> holders;  ///< that have all sources
  /// Whether a node has a source; empty: if it is one of the holders.
  std::function<bool(std::uint32_t node, std::size_t source)> holds;
  /// This node is lost when it has this share of the data, or, if it has all from the start, has sent it.
  std::optional<std::uint32_t> lost;
  double lost_at = 0;
  std::chrono::milliseconds join_timeout{60'000};
  std::function<void(std::uint32_t node)> before_read;  ///< of a chunk at the source
  PeerTimeouts timeouts{.silence = std::chrono::seconds(2), .chunk = std::chrono::seconds(20)};
};

/// A chunk that reached a node; `from` is the node itself if it read the source.
struct ChainHop {
  std::size_t chunk = 0;
  std::uint32_t from = 0;
};

struct ChainEnd {
  std::vector<std::uint64_t> sent;  ///< bytes of chunks, by node
  std::vector<std::uint64_t> read;  ///< bytes from the source, by node
  std::size_t opens = 0;            ///< of files at the source
  std::size_t connections = 0;      ///< the largest number that one node has made
  std::size_t chunks = 0;
  std::size_t rounds = 0;                         ///< at the rendezvous
  std::uint64_t rendezvous_bytes = 0;             ///< sent and received there by all nodes
  std::size_t threads = 0;                        ///< of each node, on average
  double cpu_seconds = 0;                         ///< of the whole process, while chunks were passed on
  double helper_seconds = 0;                      ///< of a processor, at the rendezvous
  bool complete = true;                           ///< all nodes that were not lost have everything
  std::vector<std::vector<ChainHop>> hops;        ///< by node, in the order of arrival
  std::vector<std::vector<std::size_t>> initial;  ///< the chunks that each node had at the start
  std::vector<std::string> notes;

  std::uint64_t max_sent() const;
  std::uint64_t all_read() const;
};

/// Runs until all nodes have the data.
ChainEnd run_chain(const ChainOptions& options);

}  // namespace lockstep::transfer
