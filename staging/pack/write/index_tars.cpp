#include "staging/pack/write/index_tars.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "staging/pack/formats/data_file.h"
#include "staging/pack/index_builder.h"
#include "staging/pack/locate.h"
#include "staging/pack/member_name.h"
#include "staging/pack/tar_members.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

std::uint64_t digest_of_part(const DataFile& file, std::uint64_t offset, std::uint64_t size,
                             std::size_t sample) {
  constexpr std::uint64_t kBlock = std::uint64_t{1} << 20;
  Hasher hasher(Hasher::Width::bits64);
  std::vector<std::byte> buffer(std::min(kBlock, size));
  for (std::uint64_t done = 0; done < size;) {
    const auto block = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), size - done));
    file.read(offset + done, block, sample);
    hasher.update(block);
    done += block.size();
  }
  return hasher.value();
}

void add_members(const DataFile& file, IndexBuilder& builder) {
  TarMembers members(file.path());
  std::string key;
  std::set<std::string, std::less<>> kinds;  // of the sample, so far
  while (members.next()) {
    if (members.folder()) continue;
    const std::string name = members.name();
    const auto refuse = [&](std::string_view reason) {
      fail("{}: member '{}' at offset {} {}", file.path().string(), name, members.offset(), reason);
    };
    if (const std::string_view reason = unsafe_member_name(name); !reason.empty()) refuse(reason);
    if (!members.plain_file()) refuse("is not a regular file");
    const MemberName split = split_member_name(name);
    if (kinds.empty() || split.key != key) {
      key = split.key;
      kinds.clear();
      builder.add_sample(key);
    }
    if (!kinds.emplace(split.kind).second) refuse("appears twice in its sample");
    builder.add_part(split.kind, members.offset(), members.size(),
                     digest_of_part(file, members.offset(), members.size(), builder.samples() - 1));
  }
}

std::vector<std::string> tars_of(const fs::path& folder) {
  std::vector<std::string> tars;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().extension() == ".tar") tars.push_back(entry->path().filename().string());
  }
  if (error) fail("cannot list {}: {}", folder.string(), error.message());
  std::sort(tars.begin(), tars.end());
  return tars;
}

}  // namespace

bool has_tars_without_index(const fs::path& source) {
  std::error_code error;
  return fs::is_directory(source, error) && has_tars(source) && !fs::exists(source / kIndexName, error);
}

void index_tars(const fs::path& folder) {
  IndexBuilder builder(0);
  for (const std::string& name : tars_of(folder)) {
    const DataFile file(folder / name);
    const std::size_t before = builder.samples();
    builder.begin_shard(name);
    add_members(file, builder);
    if (builder.samples() == before) fail("{} holds no files", file.path().string());
    Hasher whole;
    Stream stream(file);
    for (auto block = stream.next(); !block.empty(); block = stream.next()) whole.update(block);
    builder.end_shard(file.size(), whole.digest());
  }
  write_file_atomically(folder / kIndexName, builder.finish());
}

}  // namespace lockstep::pack
