// Who still has data, when ranks have unequal numbers of batches: before each forward those that do say so,
// and what they are going to do; those that do not say so too, and then take part in whatever the others do,
// with zeros.
//
// Threads: the training thread; all ranks announce in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep {

struct JoinOptions {
  /// Gradients are divided by the number of ranks; false: by the number of those that still have data.
  bool divide_by_initial_world_size = true;

  /// false: the loop runs as it would without join, for which inputs must be even.
  bool enable = true;

  /// Ends the loop on all ranks with an Error as soon as one rank has no more data.
  bool throw_on_early_termination = false;
};

namespace ddp {

class Join {
 public:
  /// `factor`: what reduced gradients are multiplied by. It must be 1 ÷ ranks, and is that again at the end.
  Join(comm::Communicator& communicator, std::shared_ptr<double> factor, const JoinOptions& options);
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  /// What a rank that has data will do in this forward and the backward after it.
  struct Plan {
    bool synchronises = false;
    bool broadcasts_buffers = false;
  };

  /// Before forward, on a rank that has data. Waits only where the answer is needed. Throws Error under
  /// throw_on_early_termination when a rank has ended. Gives the rank whose buffers are everyone's.
  int announce(Plan plan);

  /// Instead of a forward, on a rank that has none: what the others will do. False: nobody has data any more.
  bool shadow(Plan& plan);

  /// The rank whose buffers count in this forward, and whose model counts at the end: the last one of those
  /// that had data last.
  int authority() const { return authority_; }

 private:
  struct Everyone;
  void ask(std::uint8_t flags);
  bool wait();

  comm::Communicator& communicator_;
  std::shared_ptr<double> factor_;
  JoinOptions options_;
  std::string label_ = "who has data";  // with the options, which all ranks must choose alike
  std::shared_ptr<Everyone> everyone_;  // kept by the operation
  comm::WorkHandle asked_;
  int authority_ = 0;
};

}  // namespace ddp
}  // namespace lockstep
