// An operation as this rank's part of it: what was asked for, where its data lies, how far it is.
//
// Threads: whoever drives the group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/operation.h"
#include "runtime/comm/shm/board.h"

namespace lockstep::comm::shm {

struct Task {
  Request request;
  std::string label;
  Buffer buffer;        ///< what is reduced or broadcast, or this rank's part
  void* all = nullptr;  ///< of an all_gather or reduce_scatter
  ReduceOptions options;
  std::shared_ptr<Operation> operation;

  std::uint64_t number = 0;
  std::shared_ptr<void> staging;              ///< a copy in shared memory of data that lies elsewhere
  std::vector<std::byte*> views;              ///< every local rank's data; filled when work begins
  std::vector<std::shared_ptr<void>> mapped;  ///< keeps them valid
  bool compared = false;                      ///< with what the others asked for
  bool share_done = false;                    ///< nothing is left here for this rank
  std::exception_ptr error;
};

}  // namespace lockstep::comm::shm
