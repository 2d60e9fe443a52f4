// This rank's part of an operation: what was asked for, where its data lies, how far it is.
//
// Threads: the thread that drives the NodeGroup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/cpu/operation_slots.h"
#include "runtime/comm/operation.h"

namespace lockstep::comm::cpu {

struct Task {
  OperationRequest request;
  std::string label;
  Buffer buffer;        ///< the data to reduce or broadcast, or this rank's part
  void* all = nullptr;  ///< of an all_gather or reduce_scatter
  ReduceOptions options;
  std::shared_ptr<Operation> operation;

  std::uint64_t number = 0;
  std::shared_ptr<void> staging;              ///< a copy of the data, if it is not in shared memory
  std::vector<std::byte*> views;              ///< the data of every local rank, once the work has begun
  std::vector<std::shared_ptr<void>> mapped;  ///< keeps `views` valid
  bool compared = false;                      ///< with the requests of the other ranks
  bool share_done = false;                    ///< this rank has no more work to do
  std::exception_ptr error;
};

}  // namespace lockstep::comm::cpu
