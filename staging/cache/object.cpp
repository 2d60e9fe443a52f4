#include "staging/cache/object.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/file_system.h"
#include "common/files.h"
#include "common/json_bytes.h"

namespace lockstep::cache {
namespace {

using nlohmann::json;

constexpr std::uint64_t kBriefBytes = 65536;  // enough for everything before the list of files
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30U;  // millions of files
constexpr const char* kFiles = R"(,"files":[)";               // as to_json() writes it

json to_json(const ObjectFile& file) {
  json value = {{"size", file.size}, {"xxh3", file.xxh3}};
  put_bytes(value, "name", file.name);
  return value;
}

ObjectFile parse_file(const json& value) {
  return {.name = bytes_in(value, "name"),
          .size = value.at("size").get<std::uint64_t>(),
          .xxh3 = value.at("xxh3").get<std::string>()};
}

}  // namespace

ObjectInfo read_object(const std::filesystem::path& file, const std::string& name, bool brief) {
  const UniqueFd fd = open_file(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno("cannot stat {}", file.string());
  if (!S_ISREG(status.st_mode)) fail("{} is damaged: it is not a file; put the source again", file.string());
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (!brief && size > kMaxBytes)
    fail("{} is damaged: it has {} bytes; put the source again", file.string(), size);
  std::string text(brief ? std::min(size, kBriefBytes) : size, '\0');
  const auto bytes = std::as_writable_bytes(std::span(text));
  std::size_t done = 0;
  while (const std::size_t got = FileSystem::real().read_at(fd.get(), bytes.subspan(done), done, file))
    done += got;
  text.resize(done);
  return parse_object(text, name, file.string(), brief);
}

std::string to_json(const ObjectInfo& info) {
  // The files come last, so that a brief read can stop before them.
  nlohmann::ordered_json description = {
      {"source", info.source}, {"format", info.format}, {"bytes", info.bytes}, {"created", info.created}};
  std::string text = description.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (!info.files.empty()) {
    // File by file: a JSON tree of all of them would take ten times the memory of the text.
    text.pop_back();
    text += kFiles;
    for (const ObjectFile& file : info.files) {
      if (&file != info.files.data()) text += ',';
      text += to_json(file).dump();
    }
    text += "]}";
  }
  return text + "\n";
}

ObjectInfo parse_object(const std::string& text, const std::string& name, const std::string& file,
                        bool brief) {
  try {
    // A quote inside a name is preceded by a backslash, so this can only be the list itself.
    const std::size_t files = brief ? text.find(kFiles) : std::string::npos;
    ObjectInfo info{.name = name};
    // Takes each file out of the tree as it is read: a tree of 100,000 files would need 60 MB.
    const auto take_file = [&](int depth, json::parse_event_t event, json& value) {
      if (depth != 2 || event != json::parse_event_t::object_end) return true;
      if (!brief) info.files.push_back(parse_file(value));
      return false;
    };
    const json description =
        json::parse(files == std::string::npos ? text : text.substr(0, files) + "}", take_file);
    info.source = description.at("source");
    info.bytes = description.at("bytes");
    info.created = description.at("created");
    info.format = description.value("format", "tar");
    return info;
  } catch (const std::exception&) {  // from the parser, or because a value has another type
    fail("{} is damaged; put the source again with --verify full", file);
  }
}

}  // namespace lockstep::cache
