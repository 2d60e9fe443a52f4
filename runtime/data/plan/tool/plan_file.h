// PLAN.jsonl: a plan as text, for other programs and for looking at. The first line is an object with
// version, samples, ranks, cap, accumulate, cost, seed, epoch and fingerprint (and, where they are not the
// default: step_tokens, step_stretch, equal_micro_batches, padded, pad_multiple, too_long, tail, speeds; of a
// mixture also that, see mixture_file.h);
// then a line per optimizer step: {"step":i,"ranks":[[[sample,...],... micro-batches],... ranks]}.
// A piece of a sample that was split is [sample,piece]. Where samples of a mixture are not all of their data
// sets' first epochs, "epochs" beside "ranks" has each one's epoch, modulo 256, in the same places.
//
// Threads: safe from any.
#pragma once

#include <filesystem>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// Writes the whole file or, on failure, leaves what was there. Throws Error naming the file.
void write_plan(const Plan& plan, const std::filesystem::path& file);

/// Throws Error with file and line when a line is not what the format says, or does not have as many
/// ranks as the first line announces.
Plan read_plan(const std::filesystem::path& file);

}  // namespace lockstep::data
