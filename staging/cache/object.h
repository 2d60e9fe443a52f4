// What stands in an object's object.json: what the object is a copy of, and how that can be checked.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::cache {

/// A file of an object without index.lockstep, whose bytes nothing else describes.
struct ObjectFile {
  std::string name;        ///< below the object's files, with "/" between folders
  std::uint64_t size = 0;  ///< bytes
  std::string xxh3;        ///< XXH3-128 of its bytes, 32 hex digits
};

struct ObjectInfo {
  std::string name{};               ///< 32 hex digits
  std::string source{};             ///< absolute path of what it is a copy of
  std::uint64_t bytes = 0;          ///< of all its files
  std::int64_t created = 0;         ///< seconds since 1970; publish() fills it in
  std::string format = "tar";       ///< as pack::name_of() says it
  std::vector<ObjectFile> files{};  ///< empty where index.lockstep says all this
};

/// The text of object.json. Bytes of names that are no UTF-8 are replaced in it.
std::string to_json(const ObjectInfo& info);

/// Reads an object.json, which is another user's where root looks after the node: never waits, follows no
/// link, and `brief` reads no more than its beginning. Throws Error naming the file.
ObjectInfo read_object(const std::filesystem::path& file, const std::string& name, bool brief = false);

/// Reads its text; `file` is named in the Error where it is damaged. With `brief` the files are left out,
/// which is cheaper where there are thousands.
ObjectInfo parse_object(const std::string& text, const std::string& name, const std::string& file,
                        bool brief = false);

}  // namespace lockstep::cache
