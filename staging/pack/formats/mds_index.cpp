#include "staging/pack/formats/mds_index.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "staging/pack/member_name.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// The JSON library would convert 1e300 to some integer.
std::uint64_t integer(const Json& json) {
  if (!json.is_number_unsigned()) fail("a size or count is not an integer");
  return json.get<std::uint64_t>();
}

MdsFile file_of(const Json& json) {
  MdsFile file;
  file.name = json.at("basename").get<std::string>();
  file.bytes = integer(json.at("bytes"));
  for (const auto& [algorithm, digits] : json.at("hashes").items())
    file.hashes[algorithm] = digits.get<std::string>();
  return file;
}

std::vector<MdsColumn> columns_of(const Json& json) {
  const Json& names = json.at("column_names");
  const Json& encodings = json.at("column_encodings");
  const Json& sizes = json.at("column_sizes");
  std::vector<MdsColumn> columns;
  for (std::size_t c = 0; c < names.size(); ++c) {
    const std::uint64_t size = sizes.at(c).is_null() ? 0 : integer(sizes.at(c));
    if (size > std::numeric_limits<std::uint32_t>::max())
      fail("a column of {} bytes does not fit into a shard", size);
    columns.push_back({.name = names.at(c).get<std::string>(),
                       .encoding = encodings.at(c).get<std::string>(),
                       .size = static_cast<std::uint32_t>(size)});
  }
  return columns;
}

MdsShard shard_of(const Json& json) {
  const auto version = integer(json.at("version"));
  if (version != 2) fail("version {} is not supported, only version 2", version);
  const auto format = json.at("format").get<std::string>();
  if (format != "mds") fail("format '{}' is not supported, only mds", format);
  MdsShard shard;
  shard.raw = file_of(json.at("raw_data"));
  if (json.contains("zip_data") && !json.at("zip_data").is_null())
    shard.compressed = file_of(json.at("zip_data"));
  shard.samples = integer(json.at("samples"));
  shard.columns = columns_of(json);
  if (shard.columns.empty()) fail("it has no columns");
  if (shard.samples >= std::numeric_limits<std::uint32_t>::max() / sizeof(std::uint32_t))
    fail("{} samples do not fit into a shard", shard.samples);
  for (const MdsFile* file : {&shard.raw, &shard.compressed}) {
    const std::string_view reason =
        file->name.empty() && file == &shard.compressed ? std::string_view() : unsafe_member_name(file->name);
    if (!reason.empty()) fail("its file name '{}' {}", file->name, reason);
  }
  return shard;
}

bool has_size(const fs::path& path, std::uint64_t& size) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) fail_errno("{}", path.string());
    return false;
  }
  if (!S_ISREG(status.st_mode)) fail("{} is not a regular file", path.string());
  size = static_cast<std::uint64_t>(status.st_size);
  return true;
}

std::uint32_t u32_at(const char* bytes) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes, sizeof(number));
  return number;
}

}  // namespace

std::vector<MdsShard> parse_mds_index(std::string_view text, const fs::path& name) {
  std::vector<MdsShard> shards;
  // The JSON library would take a zero byte for the end of the text.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    fail("{}: damaged MDS index: a zero byte at offset {}", name.string(), zero);
  }
  try {
    const Json json = Json::parse(text);
    for (const Json& shard : json.at("shards")) shards.push_back(shard_of(shard));
  } catch (const Json::exception& error) {
    fail("{}: damaged MDS index: shard {}: {}", name.string(), shards.size(), error.what());
  } catch (const Error& error) {
    fail("{}, shard {}: {}", name.string(), shards.size(), error.what());
  }
  if (shards.empty()) fail("{} lists no shards", name.string());
  return shards;
}

std::vector<MdsShard> load_mds_index(const fs::path& file) {
  return parse_mds_index(read_text_file(file), file);
}

void check_mds_shard(const fs::path& index, const MdsShard& shard) {
  const fs::path folder = index.parent_path();
  bool found = false;
  for (const MdsFile* file : {&shard.raw, &shard.compressed}) {
    std::uint64_t size = 0;
    if (file->name.empty() || !has_size(folder / file->name, size)) continue;
    found = true;
    if (size != file->bytes)
      fail("{} does not match {}: {} bytes, {} expected", (folder / file->name).string(),
           index.filename().string(), size, file->bytes);
  }
  if (!found) fail("{} is missing; {} lists it", (folder / shard.raw.name).string(), index.string());
}

std::uint64_t mds_table_bytes(const MdsShard& shard) {
  return sizeof(std::uint32_t) * (shard.samples + 2);
}

std::vector<std::uint32_t> parse_mds_table(std::string_view front, const MdsShard& shard,
                                           const fs::path& name) {
  const std::uint64_t wanted = mds_table_bytes(shard);
  if (front.size() < wanted)
    fail("{}: {} bytes are too few for the table of {} samples", name.string(), front.size(), shard.samples);
  const std::uint32_t samples = u32_at(front.data());
  if (samples != shard.samples)
    fail("{} has {} samples, but its index.json says {}", name.string(), samples, shard.samples);
  std::vector<std::uint32_t> begins(shard.samples + 1);
  std::memcpy(begins.data(), front.data() + sizeof(std::uint32_t), begins.size() * sizeof(std::uint32_t));
  std::uint64_t end = wanted;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    if (begins[i] < end || begins[i] > shard.raw.bytes)
      fail("{}, sample {}, offset {}: it overlaps the sample before it, or lies outside the file's {} bytes",
           name.string(), i, begins[i], shard.raw.bytes);
    end = begins[i];
  }
  if (end != shard.raw.bytes)
    fail("{}: the last sample ends at {}, but the file ends at {}", name.string(), end, shard.raw.bytes);
  return begins;
}

std::uint64_t mds_head_bytes(const std::vector<MdsColumn>& columns) {
  return sizeof(std::uint32_t) *
         static_cast<std::uint64_t>(
             std::count_if(columns.begin(), columns.end(), [](const MdsColumn& c) { return c.size == 0; }));
}

std::vector<MdsPart> parse_mds_sample(std::span<const std::byte> head, std::uint64_t bytes,
                                      const std::vector<MdsColumn>& columns) {
  std::vector<MdsPart> parts;
  std::uint64_t at = mds_head_bytes(columns);
  if (head.size() < at) return {};
  for (const MdsColumn& column : columns) {
    std::uint64_t size = column.size;
    if (size == 0) {
      size = u32_at(reinterpret_cast<const char*>(head.data()));
      head = head.subspan(sizeof(std::uint32_t));
    }
    parts.push_back({at, size});
    at += size;
  }
  if (at != bytes) parts.clear();
  return parts;
}

}  // namespace lockstep::pack
