// What single files of the known formats look like from outside: by their first bytes, and by whether they
// are as long as their own tables say.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::pack {

// First bytes, as many as there are up to 32.
bool is_megatron_index(std::string_view first_bytes);
bool is_tfrecord(std::string_view first_bytes);
bool is_lmdb(std::string_view first_bytes);

/// The file in which this library keeps where the samples of `data_file` lie: ".NAME.lockstep" beside it.
std::string side_index_name(std::string_view data_file);
inline constexpr std::string_view kUnfinishedEnd = ".unfinished";
/// Whether a file is one of these, or what a killed process left of one (with kUnfinishedEnd behind).
bool is_side_index(std::string_view path);

}  // namespace lockstep::pack
