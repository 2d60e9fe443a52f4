#include "staging/pack/write/index_tars.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "staging/pack/compression.h"
#include "staging/pack/file_status.h"
#include "staging/pack/formats/data_file.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/pack/member_name.h"
#include "staging/pack/tar_members.h"
#include "staging/pack/write/file_list.h"

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

/// What index_tars() leaves out.
struct LeftOut {
  std::size_t members = 0;
  std::size_t without_ending = 0;  // of these members
  std::string first;               // "'NAME' in SHARD"
  std::vector<std::string> empty_shards;
  std::vector<std::string> after_end;  // a line about each of them that has more after its end
  StrayFiles files;
  StrayFiles compressed;  // tar files
};

/// Throws Error for a tar file in a tar file, such as ImageNet's train.tar. It would be a sample of one class.
void refuse_nested_tar(const DataFile& file, const TarMembers& member) {
  const std::string& name = member.name();
  if (!is_tar_name(name)) return;
  const std::string bytes = file.read_some(member.offset(), std::min(kTarBlock, member.size()));
  if (!is_tar(bytes) && compression_of(bytes).empty()) return;
  fail(
      "{}: member '{}' at offset {} is a tar file itself: unpack {} (tar -xf), and then run lockstep-pack index on the folder of the inner files, unpacked too if they are compressed",
      file.path().string(), name, member.offset(), file.path().filename().string());
}

/// Returns how many bytes follow the end of the archive.
std::uint64_t add_members(const DataFile& file, Members wanted, IndexBuilder& builder, LeftOut& left_out) {
  TarMembers members(file.path());
  std::string key;
  std::set<std::string, std::less<>> kinds;  // of the sample, so far
  while (members.next()) {
    if (members.folder()) continue;
    const std::string& name = members.name();
    const auto refuse = [&](std::string_view reason) {
      fail("{}: member '{}' at offset {} {}", file.path().string(), name, members.offset(), reason);
    };
    if (is_left_out(name, wanted)) {
      if (left_out.members++ == 0)
        left_out.first = fmt::format("'{}' in {}", printable(name), file.path().filename().string());
      if (!is_left_out(name, Members::all)) ++left_out.without_ending;
      continue;
    }
    if (const std::string_view reason = unsafe_member_name(name); !reason.empty()) refuse(reason);
    if (!members.not_plain().empty()) refuse(members.not_plain());
    refuse_nested_tar(file, members);
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
  return members.bytes_after_end();
}

IndexBuilder index_of(const fs::path& folder, const std::vector<std::string>& tars, Members wanted,
                      LeftOut& left_out) {
  IndexBuilder builder(0);
  for (const std::string& name : tars) {
    const DataFile file(folder / name);
    const std::size_t before = builder.samples();
    builder.begin_shard(name);
    const std::uint64_t after_end = add_members(file, wanted, builder, left_out);
    if (builder.samples() == before) {
      builder.remove_empty_shard();
      left_out.empty_shards.push_back(name);
      // Of other shards the reader says it.
      if (after_end > 0) left_out.after_end.push_back(describe_bytes_after_end(name, after_end));
      continue;
    }
    Hasher whole;
    Stream stream(file);
    for (auto block = stream.next(); !block.empty(); block = stream.next()) whole.update(block);
    builder.end_shard(file.size(), whole.digest());
  }
  return builder;
}

std::vector<std::string> describe(const LeftOut& left_out) {
  std::vector<std::string> lines;
  if (left_out.members > 0) {
    const bool one = left_out.members == 1;
    const std::string endings =
        left_out.without_ending == 0
            ? ""
            : fmt::format(" ({} without an ending, which WebDataset ignores too)", left_out.without_ending);
    lines.push_back(fmt::format("{} member{} left out that belong{} to no sample{}: the first is {}",
                                left_out.members, one ? " is" : "s are", one ? "s" : "", endings,
                                left_out.first));
  }
  if (!left_out.empty_shards.empty()) {
    const std::size_t shards = left_out.empty_shards.size();
    lines.push_back(fmt::format("{} shard{} no samples and {} left out: {}{}", shards,
                                shards == 1 ? " holds" : "s hold", shards == 1 ? "is" : "are",
                                left_out.empty_shards.front(), shards == 1 ? "" : ", ..."));
  }
  lines.insert(lines.end(), left_out.after_end.begin(), left_out.after_end.end());
  if (left_out.files.count > 0) lines.push_back(describe(left_out.files));
  if (left_out.compressed.count > 0)
    lines.push_back(fmt::format("compressed tar files are left out: {}, such as {}: unpack them",
                                left_out.compressed.count, printable(left_out.compressed.first)));
  return lines;
}

std::vector<std::string> tars_of(const fs::path& folder, LeftOut& left_out) {
  std::vector<std::string> tars;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_shard_name(name)) {
      tars.push_back(name);
    } else if (is_stray(name)) {
      left_out.files.add(name);
    } else if (is_tar_name(name)) {
      left_out.compressed.add(name);
    }
  }
  if (error) fail("cannot list {}: {}", folder.string(), error.message());
  std::sort(tars.begin(), tars.end());
  return tars;
}

std::vector<std::string> describe_not_indexed(const Index& index, const std::vector<std::string>& tars) {
  StrayFiles missing;
  for (const std::string& name : tars)
    if (index.find_shard(name) == index.shards()) missing.add(name);
  if (missing.count == 0) return {};
  return {fmt::format(
      "tar files that {} does not have: {}, such as {}: if they hold samples, remove it and index again",
      kIndexName, missing.count, printable(missing.first))};
}

}  // namespace

std::vector<std::string> index_tars(const fs::path& folder) {
  LeftOut left_out;
  const std::vector<std::string> tars = tars_of(folder, left_out);
  if (is_file(folder / kIndexName)) return describe_not_indexed(Index::load(folder / kIndexName), tars);
  const LeftOut before = left_out;
  IndexBuilder builder = index_of(folder, tars, Members::with_ending, left_out);
  if (builder.samples() == 0 && left_out.without_ending > 0) {
    left_out = before;
    builder = index_of(folder, tars, Members::all, left_out);
  }
  if (builder.samples() == 0)
    fail("{}: its tar files hold no samples: {}", folder.string(), fmt::join(describe(left_out), "; "));
  write_file_atomically(folder / kIndexName, builder.finish());
  return describe(left_out);
}

}  // namespace lockstep::pack
