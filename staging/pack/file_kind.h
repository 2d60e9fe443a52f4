// Says what a file is that cannot be read as packed data, and what to do with it, for error messages.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "staging/pack/reader.h"

namespace lockstep::pack {

/// The kind of a file and what to do with it, as the end of a message: "it is a tar file: run lockstep-pack index FOLDER".
/// Reads its first bytes. Any file has an answer.
std::string advice_for_file(const std::filesystem::path& file);

/// The same for a folder, judged by the files that it has most of.
std::string advice_for_folder(const std::filesystem::path& folder);
/// For a folder whose files are known: sorted names relative to it.
std::string advice_for_folder(const std::filesystem::path& folder, const std::vector<std::string>& files);

/// What to do if the samples of these data must be tokens, and are not.
std::string advice_for_tokens(const Reader& reader);

}  // namespace lockstep::pack
