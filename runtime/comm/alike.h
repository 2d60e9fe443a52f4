// Compares values that must be the same on all ranks: a model's tensors, options, the inputs of a plan. If each rank
// computes them separately, a difference has no other sign.
//
// Threads: the thread that uses the communicator.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep::comm {

/// A property that must be the same on all ranks, and its value on this rank: {"option static_graph", "true"}.
struct Property {
  std::string what;
  std::string value;  ///< compared completely; messages show its first 200 bytes
};

/// Compares the properties with rank 0's. Throws UsageError on every rank if they differ, naming the first property
/// that differs, with its values on rank 0 and on the first rank that differs. `subject`: "the ranks' models".
/// `label`: why they are compared, for errors of the communicator. `remedy`: the action for the user.
void check_alike(Communicator& communicator, std::string_view subject,
                 const std::vector<Property>& properties, std::string_view label, std::string_view remedy);

/// Gives all ranks the text of `root`. `label`: what it is, for errors of the communicator.
std::string broadcast_text(Communicator& communicator, std::string text, int root, std::string_view label);

}  // namespace lockstep::comm
