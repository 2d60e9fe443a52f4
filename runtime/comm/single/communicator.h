// The communicator of one rank: every operation is done when the call returns.
//
// Threads: as comm::Communicator.
#pragma once

#include <memory>

#include "runtime/comm/communicator.h"

namespace lockstep::comm {

std::unique_ptr<Communicator> make_single_communicator(std::string node_name);

}  // namespace lockstep::comm
