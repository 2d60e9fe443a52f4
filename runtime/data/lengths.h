// Where lengths come from: a column of a CSV file, a histogram, or packed files.
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

/// One sample a row. Lines that begin with # are comments; the first other line names the columns. Throws
/// Error with file and line when a row is malformed or its length is not a whole number in 1..2^32-1, when
/// there are no rows, a blank line stands before the last one, or two columns are named `column`; UsageError
/// with the columns' names when none is.
Lengths lengths_from_csv(const std::filesystem::path& file, const std::string& column);

/// `samples` samples distributed as the columns "length" and "count" say, as exactly as whole samples can be,
/// in a fixed random order. The same file and number give the same list. Throws as lengths_from_csv does.
Lengths lengths_from_histogram(const std::filesystem::path& file, std::size_t samples);

/// The samples of a pack of tokens. `name` stands in errors. Throws Error when the pack holds no tokens,
/// naming it, or an empty sample, naming the sample's key.
Lengths lengths_from_pack(const pack::Reader& reader, const std::string& name);

/// The samples of several packs, one pack after the other.
Lengths lengths_from_packs(std::span<const std::filesystem::path> packs);

}  // namespace lockstep::data
