// Finds data that is sorted by label: the loader mixes the samples of a block (order.h), so in larger data the steps of
// a block see few of the labels.
//
// Threads: add() is safe from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::data {

class LabelOrder {
 public:
  /// Data of one block is mixed completely, so it is not looked at; nor is any with `samples` 0.
  explicit LabelOrder(std::size_t samples);

  /// Adds the samples of a batch, each once. Returns a sentence once, if neighbours in the data have the same label much
  /// more often than any two samples.
  std::optional<std::string> add(std::span<const std::int64_t> samples, std::span<const std::int64_t> labels);

 private:
  std::size_t samples_;
  std::atomic<bool> looking_;
  std::mutex mutex_;
  std::vector<std::pair<std::int64_t, std::int64_t>> seen_;  // sample and label
};

}  // namespace lockstep::data
