// Counts the damaged samples that a rank's loader leaves out (LoaderOptions::skip_damaged), and names each of them once.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>

#include "common/error.h"
#include "runtime/data/plan/options.h"
#include "staging/pack/reader.h"

namespace lockstep::data {

/// The stored bytes of a sample cannot be read or decoded. Errors of a transform are not of this type.
class DamagedSample : public Error {
 public:
  using Error::Error;
};

/// Runs `read`, which reads or decodes a sample: its Error becomes a DamagedSample.
template <typename Read>
auto reading_sample(const Read& read) {
  try {
    return read();
  } catch (const UsageError&) {
    throw;
  } catch (const Error& damage) {
    throw DamagedSample(damage.what());
  }
}

class SkippedSamples {
 public:
  /// `allowed`: different samples. 0: each damaged sample is an error.
  explicit SkippedSamples(std::uint64_t allowed) : allowed_(allowed) {}

  /// Prints a line about a sample that is left out for the first time. Throws Error if it is one more than allowed.
  void add(const pack::Reader& reader, SampleId id, const DamagedSample& damage);

 private:
  std::uint64_t allowed_;
  std::mutex mutex_;
  std::set<std::size_t> numbers_;
};

}  // namespace lockstep::data
