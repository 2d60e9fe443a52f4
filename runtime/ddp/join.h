// Lets ranks with unequal numbers of batches train together. Before each forward, a rank that has data
// announces its operations. A rank without data announces that instead, and then takes part with zeros in the
// operations of the others.
//
// Threads: the training thread; all ranks announce in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/options.h"

namespace lockstep::ddp {

class Join {
 public:
  /// `factor`: the factor by which reduced gradients are multiplied. It must be 1 ÷ ranks; the destructor
  /// restores that.
  Join(comm::Communicator& communicator, std::shared_ptr<double> factor, const JoinOptions& options);
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  /// The operations of a rank that has data, in this forward and the backward after it.
  struct Operations {
    bool synchronises = false;
    bool broadcasts_buffers = false;
  };

  /// Called before forward, on a rank that has data. Waits only if the answer is needed. Throws Error under
  /// throw_on_early_termination if a rank has ended. Returns the rank whose buffers all ranks get.
  int announce(Operations operations);

  /// Called instead of a forward, on a rank without data: gets the operations of the others. Returns false if
  /// no rank has data left.
  bool take_part_without_data(Operations& operations);

  /// The rank that gives its buffers in this forward, and its model at the end: the highest of the ranks that
  /// had data last.
  int newest_rank() const { return newest_rank_; }

 private:
  struct RankFlags;
  void exchange(std::uint8_t flags);
  bool wait();

  comm::Communicator& communicator_;
  std::shared_ptr<double> factor_;
  JoinOptions options_;
  std::string label_ = "the ranks with data";  // and the options, which must be the same on all ranks
  std::shared_ptr<RankFlags> ranks_;           // kept by the operation
  comm::WorkHandle exchange_;
  int newest_rank_ = 0;
};

}  // namespace lockstep::ddp
