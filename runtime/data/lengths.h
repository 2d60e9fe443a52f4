// Reads the lengths of samples from a column of a CSV file, a histogram, or packed files.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace lockstep::pack {
class Reader;
}

namespace lockstep::data {

struct Lengths {
  std::vector<std::uint32_t> tokens;  ///< of each sample, in the data's order
  std::string fingerprint;            ///< of the data and their order
};

/// Each row is a sample. Lines that begin with # are comments; the first other line names the columns.
/// Throws Error with file and line if a row is malformed, a length is not a whole number in 1..2^32-1,
/// there are no rows, there is a blank line before the last row, or two columns are named `column`. Throws
/// UsageError with the columns' names if no column has that name.
Lengths lengths_from_csv(const std::filesystem::path& file, const std::string& column);

/// Makes `samples` lengths whose distribution follows the columns "length" and "count" as closely as whole
/// samples allow, in a fixed random order. The same file and number give the same list. Throws as
/// lengths_from_csv does.
Lengths lengths_from_histogram(const std::filesystem::path& file, std::size_t samples);

/// The lengths of a pack's samples. Throws Error with `name` if the pack does not hold tokens, and with
/// `name` and the sample's key if a sample is empty.
Lengths lengths_from_pack(const pack::Reader& reader, const std::string& name);

/// The lengths of several packs' samples, one pack after the other.
Lengths lengths_from_packs(std::span<const std::filesystem::path> packs);

}  // namespace lockstep::data
