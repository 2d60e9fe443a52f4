// Whether all ranks' loaders have the same. Each rank plans for itself and no plan is sent, so where one has
// other data, options or another state, ranks would train on some samples twice and on others never, and
// nothing else would show it.
//
// Threads: the thread that uses the communicator.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lockstep {
namespace comm {
class Communicator;
}
}  // namespace lockstep

namespace lockstep::data {

/// Something that must be the same on all ranks.
struct Agreed {
  std::string name;   ///< "the data's fingerprint"
  std::string value;  ///< compared whole, shown to its first 80 bytes
};

/// Collective: all ranks give the same names in the same order, at the cost of one gathering of eight bytes
/// for each. Throws Error on every rank where a value differs, naming the first that does, the rank whose it
/// is, and both values.
void check_agreement(comm::Communicator& communicator, const std::vector<Agreed>& agreed);

/// Collective: runs `make` on every rank. Where it throws on some, they throw that, and the others an Error
/// that names the first of them and its reason; none goes on alone to where it would wait for the others.
void made_on_all_ranks(comm::Communicator& communicator, const std::function<void()>& make);

}  // namespace lockstep::data
