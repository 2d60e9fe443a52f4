// The names of a step's nodes, and how the progress and the outcome of all nodes read as one line.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::transfer {

/// Expands "n[1-3,7],login" to names, in order. If the text is malformed, returns the names before the error.
std::vector<std::string> expand_node_list(const std::string& list);

/// "0.41 s to 3.2 s, median 0.5 s; the slowest is n3", from the seconds of each node; "" for fewer than two nodes.
std::string describe_times(std::vector<std::pair<double, std::string>> seconds);

/// How far the copy of a source is on a node.
struct NodeProgress {
  std::string source;  ///< its name
  std::uint64_t done = 0, total = 0;
  double seconds = 0;  ///< since it began
};

/// "43 % of 12.3 GiB, 512 MiB/s, 14 s left"
std::string describe_progress(std::uint64_t done, std::uint64_t total, double seconds);

/// "staging pack on 8 nodes: 43 % of 98.4 GiB, 4.00 GiB/s, 14 s left; the slowest is n3 (12 %)". The bytes are those of
/// all nodes.
std::string describe_progress(const std::map<std::string, NodeProgress>& nodes);

/// "n1, n2, ... (12 nodes)"
std::string join_names(const std::vector<std::string>& names);

/// One line that says what failed where: "n1, n2: REASON". Reasons are joined by "; "; long lists are cut,
/// with a count.
std::string describe(const std::map<std::string, std::string>& why_by_node);

}  // namespace lockstep::transfer
