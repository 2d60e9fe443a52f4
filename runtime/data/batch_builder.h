// Makes one micro-batch of tensors from the samples of a pack.
//
// Threads: build() and recycle() are safe from any thread.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/data/loader.h"
#include "runtime/data/planner.h"
#include "staging/pack/reader.h"

namespace lockstep::data {

class BatchBuilder {
 public:
  /// For one rank's part of the plan. `reader` must outlive the builder.
  BatchBuilder(const pack::Reader& reader, std::shared_ptr<const Plan> plan, int rank);

  /// This rank's micro-batch number `index`, counted over the epoch. Throws Error naming the sample.
  Batch build(std::size_t index);

  /// Takes a batch back. Its memory is used again unless somebody else still holds it.
  void recycle(Batch batch);

 private:
  torch::Tensor buffer();

  const pack::Reader& reader_;
  std::shared_ptr<const Plan> plan_;
  int rank_;
  std::mutex mutex_;
  std::vector<torch::Tensor> free_;  // int64 [cap]
};

}  // namespace lockstep::data
