// An object's description, object.json: what the object is a copy of, and how the copy can be checked.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::cache {

/// A file of an object that has no index.lockstep, so that nothing else describes the file's bytes.
struct ObjectFile {
  std::string name;        ///< relative to the object's files, with "/" between folders
  std::uint64_t size = 0;  ///< bytes
  std::string xxh3;        ///< XXH3-128 of its bytes, 32 hex digits
};

struct ObjectInfo {
  std::string name{};               ///< 32 hex digits
  std::string source{};             ///< absolute path of the original
  std::uint64_t bytes = 0;          ///< of all its files
  std::int64_t created = 0;         ///< seconds since 1970; publish() fills it in
  std::string format = "tar";       ///< as pack::name_of() returns it
  std::vector<ObjectFile> files{};  ///< empty if the object has an index.lockstep
};

/// The text of object.json. Bytes that are not UTF-8 are replaced in the source and written as digits in file
/// names.
std::string to_json(const ObjectInfo& info);

/// Reads an object.json. It may be another user's, so this never blocks and follows no link. `brief` reads
/// only the beginning. Throws Error naming the file.
ObjectInfo read_object(const std::filesystem::path& file, const std::string& name, bool brief = false);

/// Parses its text. If it is damaged, throws Error naming `file`. `brief` leaves out the list of files, which
/// is faster if there are thousands.
ObjectInfo parse_object(const std::string& text, const std::string& name, const std::string& file,
                        bool brief = false);

}  // namespace lockstep::cache
