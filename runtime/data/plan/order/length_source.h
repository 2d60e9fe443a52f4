// The source of the planner's lengths: memory, an index on disk, or a formula. The planner reads a range of
// samples at a time, so it can plan a billion samples whose lengths do not fit into memory.
//
// Threads: const members must be safe from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace lockstep::data {

class LengthSource {
 public:
  virtual ~LengthSource() = default;
  LengthSource() = default;
  LengthSource(const LengthSource&) = delete;
  LengthSource& operator=(const LengthSource&) = delete;

  /// The number of samples.
  virtual std::size_t size() const = 0;

  /// Writes the lengths in tokens of the samples first, first + 1, ... into `lengths`.
  virtual void read(std::size_t first, std::span<std::uint32_t> lengths) const = 0;

  /// Identifies the data and their order: sources with equal fingerprints have the same samples.
  virtual std::string fingerprint() const = 0;
};

/// Lengths in memory, which must outlive this object.
class LengthsInMemory final : public LengthSource {
 public:
  LengthsInMemory(std::span<const std::uint32_t> lengths, std::string fingerprint)
      : lengths_(lengths), fingerprint_(std::move(fingerprint)) {}

  std::size_t size() const override { return lengths_.size(); }
  void read(std::size_t first, std::span<std::uint32_t> lengths) const override {
    std::copy_n(lengths_.begin() + static_cast<std::ptrdiff_t>(first), lengths.size(), lengths.begin());
  }
  std::string fingerprint() const override { return fingerprint_; }

 private:
  std::span<const std::uint32_t> lengths_;
  std::string fingerprint_;
};

}  // namespace lockstep::data
