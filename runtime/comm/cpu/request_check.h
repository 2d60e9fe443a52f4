// Compares what this node calls with what the node before calls, by one message to the next node: if all
// neighbours agree, all nodes agree. A collective that is not the same everywhere could hang on one rank and succeed
// on another.
//
// Threads: one at a time.
#pragma once

#include <mpi.h>

#include <array>
#include <string_view>

#include "runtime/comm/cpu/operation_slots.h"

namespace lockstep::comm::cpu {

class RequestCheck {
 public:
  /// Sends the request to the next node of `lane`.
  RequestCheck(MPI_Comm lane, int node, int nodes, const OperationRequest& request, std::string_view label);
  RequestCheck(const RequestCheck&) = delete;
  RequestCheck& operator=(const RequestCheck&) = delete;

  /// Whether the node before calls the same; false as long as its message is not there. Ends the job, with a line
  /// that names both requests, if it calls something else.
  bool matched();
  /// Waits for it.
  void wait();

 private:
  struct Message {
    OperationRequest request;
    std::int32_t rank = 0;
    std::array<char, kLabelBytes> label{};
  };
  Message mine_;
  Message theirs_;
  std::array<MPI_Request, 2> requests_{};
  bool matched_ = false;
};

}  // namespace lockstep::comm::cpu
