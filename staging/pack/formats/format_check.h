// Recognises the files of the known formats by their first bytes or their names.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::pack {

// `first_bytes` are the first 32 bytes, or fewer if the file is shorter.
bool is_megatron_index(std::string_view first_bytes);
bool is_tfrecord(std::string_view first_bytes);
bool is_lmdb(std::string_view first_bytes);

/// The name of the index that this library stores beside `data_file`: ".NAME.lockstep".
std::string side_index_name(std::string_view data_file);
inline constexpr std::string_view kUnfinishedEnd = ".unfinished";
/// Whether a file is such an index, or an unfinished one (with kUnfinishedEnd) that a killed process left.
bool is_side_index(std::string_view path);

}  // namespace lockstep::pack
