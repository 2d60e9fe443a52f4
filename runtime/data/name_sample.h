// Errors of one sample, told with where it was wanted.
//
// Threads: safe from any.
#pragma once

#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <cstdint>
#include <exception>
#include <string>

#include "common/error.h"
#include "runtime/data/ordered_prefetch.h"
#include "runtime/data/plan/planner.h"
#include "staging/pack/reader.h"

namespace lockstep::data {

/// For ended_at(). Throws nothing: where a thread is ended, an exception would end the process.
inline std::string said_of(const pack::Reader& reader, SampleId id, int rank, std::uint64_t step) noexcept {
  try {
    return fmt::format(": rank {}, step {}: sample '{}' (number {})", rank, step, reader.key(sample_of(id)),
                       sample_of(id));
  } catch (...) {
    return {};
  }
}

/// Does the work on a sample, which may be the user's own; whatever it throws becomes an Error that names
/// rank, step and sample. A thread that is ended in it goes,
/// and leaves word of the sample in ended_at().
template <typename Work>
void naming_sample(const pack::Reader& reader, SampleId id, int rank, std::uint64_t step, const Work& work) {
  try {
    work();
  } catch (abi::__forced_unwind&) {
    ended_at() = said_of(reader, id, rank, step);
    throw;
  } catch (const c10::Error& error) {  // whose what() goes on with a stack of frames
    fail("rank {}, step {}: sample '{}' (number {}): {}", rank, step, reader.key(sample_of(id)),
         sample_of(id), error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail("rank {}, step {}: sample '{}' (number {}): {}", rank, step, reader.key(sample_of(id)),
         sample_of(id), error.what());
  } catch (...) {
    fail("rank {}, step {}: sample '{}' (number {}): what was thrown is no std::exception", rank, step,
         reader.key(sample_of(id)), sample_of(id));
  }
}

}  // namespace lockstep::data
