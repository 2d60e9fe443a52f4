// One function per format that opens one file of it. open() (reader.h) finds out which, and joins several.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "staging/pack/format.h"
#include "staging/pack/reader.h"

namespace lockstep::pack {

/// As contents_of(), but follows symbolic links: what is to be read may be a job's folder, whose entries
/// point to the source until it is staged.
Contents readable_contents_of(const std::filesystem::path& source);

/// Whether a file of a folder of that format is one of those that hold the data, by its name.
bool is_of_format(Format format, std::string_view file);

// `file` is a name below `folder`; it stands in messages and in parts.
std::unique_ptr<Reader> open_tar(const std::filesystem::path& source, const OpenOptions& options);
std::unique_ptr<Reader> open_megatron(const std::filesystem::path& folder, const std::string& index);
std::unique_ptr<Reader> open_tfrecord(const std::filesystem::path& folder, const std::string& file,
                                      const OpenOptions& options);
std::unique_ptr<Reader> open_recordio(const std::filesystem::path& folder, const std::string& file,
                                      const OpenOptions& options);
std::unique_ptr<Reader> open_npy(const std::filesystem::path& folder, const std::string& file);
std::unique_ptr<Reader> open_lmdb(const std::filesystem::path& folder, const std::string& file);
/// `dataset` is a path in the file, or "" where it has only one.
std::unique_ptr<Reader> open_hdf5(const std::filesystem::path& folder, const std::string& file,
                                  const std::string& dataset);
/// All shards of an index.json, or the one named `only`.
std::unique_ptr<Reader> open_mds(const std::filesystem::path& folder, const std::string& index,
                                 const std::string& only);

}  // namespace lockstep::pack
