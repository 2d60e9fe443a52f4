// Adds the rank, step and sample to the errors of one sample.
//
// Threads: safe from any.
#pragma once

#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <cstdint>
#include <exception>
#include <string>

#include "common/error.h"
#include "common/ordered_prefetch.h"
#include "runtime/data/plan/planner.h"
#include "runtime/data/skipped_samples.h"
#include "staging/pack/reader.h"

namespace lockstep::data {

/// The text for place_of_thread_end(). It must not throw, because an exception while a thread is ended
/// would end the process.
inline std::string place_of(const pack::Reader& reader, SampleId id, int rank, std::uint64_t step) noexcept {
  try {
    return fmt::format(": rank {}, step {}: sample '{}' (number {})", rank, step, reader.key(sample_of(id)),
                       sample_of(id));
  } catch (...) {
    return {};
  }
}

/// Runs `work` on a sample; it may be user code. Every exception becomes an Error (a DamagedSample stays one) that names
/// rank, step and sample. If `work` ends the thread (pthread_exit), this records the sample in place_of_thread_end().
template <typename Work>
void naming_sample(const pack::Reader& reader, SampleId id, int rank, std::uint64_t step, const Work& work) {
  const auto named = [&](const char* what) {
    return fmt::format("rank {}, step {}: sample '{}' (number {}): {}", rank, step, reader.key(sample_of(id)),
                       sample_of(id), what);
  };
  try {
    work();
  } catch (abi::__forced_unwind&) {
    place_of_thread_end() = place_of(reader, id, rank, step);
    throw;
  } catch (const DamagedSample& damage) {
    throw DamagedSample(named(damage.what()));
  } catch (const c10::Error& error) {  // its what() contains a stack trace
    throw Error(named(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw Error(named(error.what()));
  } catch (...) {
    throw Error(named("the exception is not a std::exception"));
  }
}

}  // namespace lockstep::data
