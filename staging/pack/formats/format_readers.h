// One function for each format, which opens one file. open() (reader.h) chooses the function and joins the
// readers of several files.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "staging/pack/reader.h"

namespace lockstep::pack {

// `file` is relative to `folder`; messages and parts name it.
std::unique_ptr<Reader> open_tar(const std::filesystem::path& source, const OpenOptions& options);
std::unique_ptr<Reader> open_megatron(const std::filesystem::path& folder, const std::string& index);
std::unique_ptr<Reader> open_tfrecord(const std::filesystem::path& folder, const std::string& file,
                                      const OpenOptions& options);
std::unique_ptr<Reader> open_recordio(const std::filesystem::path& folder, const std::string& file,
                                      const OpenOptions& options);
std::unique_ptr<Reader> open_lmdb(const std::filesystem::path& folder, const std::string& file,
                                  const OpenOptions& options);
/// `dataset` is a path in the file; "" if the file has only one dataset.
std::unique_ptr<Reader> open_hdf5(const std::filesystem::path& folder, const std::string& file,
                                  const std::string& dataset);

}  // namespace lockstep::pack
