// Reads mixtures from JSON, and writes what was planned of them. The file that lockstep-plan reads:
//
//   {"parts": [{"name": "web", "lengths": "web.csv"},
//              {"name": "books", "packed": ["books"]},
//              {"name": "mail", "histogram": "mail.csv", "samples": 50000}],
//    "weights": [6, 3, 1],
//    "steps": 10000}
//
// The column of a CSV file is "length" unless "column" names another. File names are relative to the folder
// of the mixture file. In the header of a plan (plan_file.h) the parts have "samples" and "drawn" instead
// of a source of lengths.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "runtime/data/plan/mixture/mixture.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

struct MixtureData {
  Mixture mixture;
  Lengths lengths;  ///< of all parts, one part after the other
};

/// Reads the mixture and the lengths of its parts. Throws Error naming the file and its first mistake.
MixtureData read_mixture(const std::filesystem::path& file);

/// The value of "mixture" in a plan's header.
void to_json(nlohmann::ordered_json& json, const PlannedMixture& planned);

}  // namespace lockstep::data
