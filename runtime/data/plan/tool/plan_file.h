// Writes PLAN.jsonl: a plan as text, for other programs and for inspection.
//
// The first line is an object with version, samples, ranks, cap, accumulate, cost, seed, epoch and
// fingerprint; step_tokens, step_stretch, equal_micro_batches, padded, pad_multiple, too_long, tail and
// speeds, if they are not the default; and mixture, in the plan of a mixture (mixture_file.h). Then each
// optimizer step has a line: {"step":i,"ranks":[[[sample,...],... micro-batches],... ranks]}. A piece of a
// split sample is [sample,piece]. In a mixture, "epochs" beside "ranks" gives each sample's epoch, modulo
// 256, in the same places; it is left out if all epochs of the step are 0.
//
// Threads: safe from any.
#pragma once

#include <filesystem>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// Writes the whole file, or leaves the old one as it is and throws Error naming the file.
void write_plan(const Plan& plan, const std::filesystem::path& file);

}  // namespace lockstep::data
