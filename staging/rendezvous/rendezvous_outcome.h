// What the nodes of a step tell each other about how staging ended, and how that reads as one line.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/error.h"

namespace lockstep::transfer {

/// A node as it presents itself.
struct Hello {
  std::uint32_t job = 0;
  std::string step;
  std::string node;
  std::uint32_t node_id = 0;  ///< 0 to nodes - 1
  std::uint32_t nodes = 1;
  std::string node_list;  ///< all nodes' names in Slurm's brackets ("n[1-4]"), to name those that never came
  std::string component;  ///< of a heterogeneous step, which stages for itself; else ""

  std::string to_text() const;
  /// Throws Error where the text is no hello, or its numbers cannot be.
  static Hello from_text(const std::string& text);
};

/// How a node's staging ended, or what all nodes' came to.
struct Verdict {
  bool good = true;
  std::string why;    ///< "" where good
  bool more = false;  ///< the node stays for rounds: staging goes on in the background

  std::string to_text() const;
  static Verdict from_text(const std::string& text);
};

/// "n[1-3,7],login" as names in order. Text that cannot be understood gives what could be read before it.
std::vector<std::string> expand_node_list(const std::string& list);

/// A node's word in a round that all of them take part in: srun gathers it and tells everyone all of them.
struct Word {
  std::string round;  ///< its name
  nlohmann::json
      data;  ///< not null; from srun an object, with the node's id as the key and null for who left

  std::string to_text() const;
  static Word from_text(const std::string& text);
};

/// What kind of message this is, by its fields.
enum class Message { verdict, word, alive };
Message kind_of(const std::string& text);
/// Sent every second by a node that has nothing to say.
inline constexpr const char* kAlive = "{\"alive\":1}";

/// One line for what failed where: "n1, n2: REASON", reasons apart joined by "; ", long lists cut with a
/// count.
std::string describe(const std::map<std::string, std::string>& why_by_node);

}  // namespace lockstep::transfer
