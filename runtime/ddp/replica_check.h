// Compares the trained parameters of all ranks every few steps, bit by bit. All ranks sum the same gradients, so
// their parameters stay equal as long as they compute alike. Ranks on different processors, or with different
// numbers of threads, may round differently; then the models drift apart, slowly and without any other sign.
//
// A check hashes the parameters once (on the CPU with LibTorch's threads). Ranks compare one number, in the message of the
// step. On a device the number is computed there and read a step later, so that the host does not wait for it.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/options.h"
#include "runtime/ddp/replicas.h"

namespace lockstep::ddp {

class ReplicaCheck {
 public:
  /// The communicators take host memory and memory of the parameters' device. Throws UsageError for a
  /// negative number of steps.
  ReplicaCheck(comm::Communicator& host_communicator, comm::Communicator& device_communicator,
               const DistributedDataParallelOptions& options);

  /// The parameters to compare from now on.
  void set_parameters(std::vector<NamedTensor> parameters) { parameters_ = std::move(parameters); }

  /// All ranks call it at the beginning of each synchronised backward. Returns the number to compare in this step; 0 if
  /// no check is due.
  std::uint64_t begin();

  /// All ranks call it at the end of that backward if the numbers differ. Throws Error on all ranks, naming a rank, its
  /// node and a parameter; or, for ReplicaDrift::rebroadcast, gives all ranks rank 0's parameters. Then rank 0 prints
  /// that, in the same words: the first time, the second, the fourth, and so on.
  /// `hash`: what begin() returned for the message.
  void finish(std::uint64_t hash, std::int64_t step);

 private:
  void sample_on_device();
  std::uint64_t read_sample();
  std::string describe(int rank, std::size_t ranks, const std::string& difference, std::int64_t step);

  comm::Communicator& host_communicator_;
  comm::Communicator& device_communicator_;
  std::int64_t every_;
  bool rebroadcasts_;
  std::uint64_t times_different_ = 0;
  std::int64_t steps_ = 0;
  std::vector<NamedTensor> parameters_;
  torch::Tensor sample_;  // of parameters on a device: a copy in host memory, perhaps still on its way
  std::optional<c10::Event> copied_;  // the copy has ended
};

}  // namespace lockstep::ddp
