// The files of lockstep-plan: mixtures, which it reads, and plans, which it writes for other programs and for inspection.
//
// A mixture:
//   {"parts": [{"name": "web", "lengths": "web.csv"},
//              {"name": "books", "packed": ["books"]},
//              {"name": "mail", "histogram": "mail.csv", "samples": 50000}],
//    "weights": [6, 3, 1],
//    "steps": 10000}
//
// The column of a CSV file is "length" unless "column" names another. File names are relative to the folder
// of the mixture file.
//
// PLAN.jsonl: the first line is an object with version, samples, ranks, cap, accumulate, cost, seed, epoch and
// fingerprint; step_tokens, step_stretch, equal_micro_batches, padded, pad_multiple, too_long, tail and
// speeds, if they are not the default; and in the plan of a mixture mixture, whose parts have "samples" and "drawn"
// instead of a source of lengths. Then each optimizer step has a line:
// {"step":i,"ranks":[[[sample,...],... micro-batches],... ranks]}. A piece of a
// split sample is [sample,piece]. In a mixture, "epochs" beside "ranks" gives each sample's epoch, modulo
// 256, in the same places; it is left out if all epochs of the step are 0.
//
// Threads: safe from any.
#pragma once

#include <filesystem>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

struct MixtureData {
  Mixture mixture;
  Lengths lengths;  ///< of all parts, one part after the other
};

/// Reads the mixture and the lengths of its parts. Throws Error naming the file and its first mistake.
MixtureData read_mixture(const std::filesystem::path& file);

/// Writes the whole file, or leaves the old one as it is and throws Error naming the file.
void write_plan(const Plan& plan, const std::filesystem::path& file);

}  // namespace lockstep::data
