// Compares the trained parameters of all ranks every few steps, bit by bit. All ranks sum the same gradients, so
// their parameters stay equal as long as they compute alike. Ranks on different processors, or with different
// numbers of threads, may round differently; then the models drift apart, slowly and without any other sign.
//
// A check hashes the parameters once (on the CPU with LibTorch's threads, on a device there), and waits for the hashes of
// all ranks.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/replicas.h"

namespace lockstep::ddp {

class ReplicaCheck {
 public:
  /// The communicators take host memory and memory of the parameters' device. Throws UsageError for a
  /// negative number of steps.
  ReplicaCheck(comm::Communicator& host_communicator, comm::Communicator& device_communicator,
               std::int64_t every);

  /// All ranks call it at the end of each synchronised backward. Compares in every so many calls. Throws Error on all
  /// ranks, naming a rank, its node and a parameter, if the parameters differ.
  void compare(const std::vector<NamedTensor>& parameters, std::int64_t step);

 private:
  std::string largest_difference_from_rank_0(const std::vector<NamedTensor>& parameters);
  std::string describe(int rank, const std::string& difference);

  comm::Communicator& host_communicator_;
  comm::Communicator& device_communicator_;
  std::int64_t every_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep::ddp
