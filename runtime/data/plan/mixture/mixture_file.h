// A mixture as text. The file that lockstep-plan takes:
//
//   {"parts": [{"name": "web", "lengths": "web.csv"},
//              {"name": "books", "packed": ["books"]},
//              {"name": "mail", "histogram": "mail.csv", "samples": 50000}],
//    "ranges": [{"first_step": 0, "weights": [6, 3, 1], "longest": 512},
//               {"first_step": 2000, "weights": [1, 1, 0]}],
//    "steps": 10000}
//
// A CSV file's column is "length" unless "column" names another. Names of files are relative to that of the
// mixture. In a plan's header (plan_file.h) the parts have "samples" and "drawn" instead of their lengths.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "runtime/data/lengths.h"
#include "runtime/data/plan/mixture/mixture.h"

namespace lockstep::data {

struct MixtureData {
  Mixture mixture;
  Lengths lengths;  ///< of all parts, one behind the other
};

/// Reads the mixture and the lengths of its parts. Throws Error naming the file and what is wrong in it.
MixtureData read_mixture(const std::filesystem::path& file);

/// "mixture" of a plan's header. from_json throws Error saying what is wrong.
void to_json(nlohmann::ordered_json& json, const PlannedMixture& planned);
void from_json(const nlohmann::json& json, PlannedMixture& planned);

}  // namespace lockstep::data
