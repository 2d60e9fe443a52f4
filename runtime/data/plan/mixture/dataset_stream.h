// One data set of a mixture as an endless stream of samples: epoch after epoch, each in its own order. It can
// start at any position. It holds one block of the data set in memory.
//
// Threads: a DatasetStream belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/data/plan/order/block_reader.h"

namespace lockstep::data {

class DatasetStream {
 public:
  /// The data set is the `samples` samples of the source from `begin` on. `position` is the number of samples
  /// already taken, in all epochs. `source` must outlive the stream.
  DatasetStream(const LengthSource& source, std::size_t begin, std::size_t samples, Order order,
                std::uint64_t seed, std::uint64_t position);

  struct Sample {
    SampleId id;  ///< includes the epoch
    std::uint32_t length;
  };
  Sample next() {
    if (place_ == block_.items.size()) load();
    const Item item = block_.items[place_++];
    ++position_;
    return {epoch_bits_ | block_.id_of(item.index), item.length};
  }

 private:
  void load();

  const LengthSource& source_;
  std::size_t begin_;
  std::size_t samples_;
  Order order_kind_;
  std::uint64_t seed_;
  std::uint64_t position_;
  std::optional<EpochOrder> order_;
  std::uint64_t epoch_ = 0;
  SampleId epoch_bits_ = 0;
  BlockSamples block_;
  std::size_t place_ = 0;  // of the next sample, in block_
};

}  // namespace lockstep::data
