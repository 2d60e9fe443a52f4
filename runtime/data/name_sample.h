// Errors of one sample, told with where it was wanted.
//
// Threads: safe from any.
#pragma once

#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <cstdint>
#include <exception>

#include "common/error.h"
#include "runtime/data/plan/planner.h"
#include "staging/pack/reader.h"

namespace lockstep::data {

/// Does the work on a sample, which may be the user's own; whatever it throws becomes an Error that names
/// rank, step and sample. A thread that is cancelled is let go.
template <typename Work>
void naming_sample(const pack::Reader& reader, SampleId id, int rank, std::uint64_t step, const Work& work) {
  try {
    work();
  } catch (abi::__forced_unwind&) {
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
