// Shared memory for copies of data that lies elsewhere. Up to 64 MiB are kept for later operations.
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
  struct FreeBlock {
    std::shared_ptr<void> memory;
    std::size_t bytes;
  };
  std::vector<FreeBlock> free_;
};

}  // namespace lockstep::comm::shm
