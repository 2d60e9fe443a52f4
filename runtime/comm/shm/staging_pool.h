// Shared memory for data that lies elsewhere, kept for the next operation up to a limit.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace lockstep::comm::shm {

class StagingPool {
 public:
  /// At least `bytes` of shared memory.
  std::shared_ptr<void> take(std::size_t bytes);
  void give_back(std::shared_ptr<void> memory);

 private:
  struct Piece {
    std::shared_ptr<void> memory;
    std::size_t bytes;
  };
  std::vector<Piece> free_;
};

}  // namespace lockstep::comm::shm
