// Checks that the loaders of all ranks have the same inputs. Each rank plans separately and no plan is
// sent. So if a rank had other data, options or another state, the ranks would train on some samples twice
// and on others never, without any other sign.
//
// Threads: the thread that uses the communicator.
#pragma once

#include <string>
#include <vector>

namespace lockstep {
namespace comm {
class Communicator;
}
}  // namespace lockstep

namespace lockstep::data {

/// A value that must be the same on all ranks.
struct LoaderInput {
  std::string name;   ///< "the data's fingerprint"
  std::string value;  ///< compared completely; messages show its first 80 bytes
};

/// Collective: all ranks pass the same names in the same order. It costs one all-gather of eight bytes per
/// value. If a value differs, every rank throws Error with the name of the first one, the rank that has it,
/// and both values.
void check_agreement(comm::Communicator& communicator, const std::vector<LoaderInput>& inputs);

}  // namespace lockstep::data
