// Recognises the format of a source and lists its files. Code that reads, stages or converts data asks here
// first, so that a format is recognised in one place only.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::pack {

enum class Format {
  tar,       ///< tar shards with index.lockstep
  megatron,  ///< Megatron-Core's .bin and .idx
  tfrecord,
  lmdb,
  hdf5,
  recordio,  ///< dmlc's .rec, with or without .idx
  plain,     ///< any other files
};

/// "tar", "megatron", "tfrecord", …
std::string_view name_of(Format format);

/// The files of a source.
struct Contents {
  Format format = Format::plain;
  std::filesystem::path folder;    ///< holds the files; without symbolic links
  std::vector<std::string> files;  ///< names relative to the folder, sorted; regular files only
  /// The user named one file. `files` may also have files that belong to it, such as an .idx.
  bool one_file = false;
  bool by_content =
      false;  ///< no name shows the format: the records are in files of any may_be_records() name
};

/// Recognises `source`, a folder or a file. Reads file names, the first bytes of at most one file, and an
/// index.json that may describe MDS data; of a tar pack it reads the index only. Throws Error naming the path
/// if the source does not exist, if a folder holds devices, sockets, or links that lead out of it (common/leaf/source_name.h), or if
/// a file of the format is missing.
Contents contents_of(const std::filesystem::path& source);

/// The same, but follows all symbolic links: the entries of a job's folder are links to the sources until these
/// are staged.
Contents readable_contents_of(const std::filesystem::path& source);

/// Whether a file holds data of this format, judged by its name.
bool is_of_format(Format format, std::string_view file);

/// Whether a file's name tells nothing, but may be that of TFRecord: "train.record", Hadoop's "part-r-00000".
bool may_be_records(std::string_view file);

/// Whether a file of a source holds samples or their index; a readme beside the data does not.
bool is_data_file(const Contents& contents, std::string_view file);

/// The name of the index that this library stores beside `data_file`: ".NAME.lockstep".
std::string side_index_name(std::string_view data_file);
inline constexpr std::string_view kUnfinishedEnd = ".unfinished";
/// Whether a file is such an index, or an unfinished one (with kUnfinishedEnd) that a killed process left.
bool is_side_index(std::string_view path);

}  // namespace lockstep::pack
