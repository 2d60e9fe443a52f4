#include "staging/pack/write/append.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/pack/member_name.h"
#include "staging/pack/write/file_packing.h"
#include "staging/pack/write/packer.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

// The unfinished folder lies in the pack's folder, so that its files can be renamed into the pack.
constexpr const char* kUnfinished = ".append.unfinished";
constexpr const char* kIndex = "index";

fs::path folder_of(const fs::path& pack) {
  const Located located = locate(pack);
  if (located.shard) fail("{} is a shard: name the pack's folder", pack.string());
  return fs::canonical(located.folder);
}

std::uint64_t hash_of(std::string_view key) {
  return xxh3_64(std::as_bytes(std::span(key)));
}

/// Whether every file is already in the pack, by name and size: the call repeats one that was killed after replacing
/// the index.
bool all_are_packed(const Index& index, const AppendOptions& options) {
  std::map<std::string, std::uint64_t, std::less<>> packed;
  for (std::size_t i = 0; i < index.samples(); ++i) {
    for (std::size_t p = index.first_part(i); p < index.first_part(i + 1); ++p)
      packed.emplace(join_member_name(index.key(i), index.kind(index.part(p))), index.part(p).size);
  }
  return std::all_of(options.files.begin(), options.files.end(), [&](const std::string& file) {
    const auto found = packed.find(file);
    std::error_code error;
    return found != packed.end() && fs::file_size(options.folder / file, error) == found->second && !error;
  });
}

void refuse_known_keys(const Index& index, const AppendOptions& options) {
  std::vector<std::uint64_t> known(index.samples());
  for (std::size_t i = 0; i < known.size(); ++i) known[i] = hash_of(index.key(i));
  std::sort(known.begin(), known.end());
  for (const std::string& file : options.files) {
    const std::string_view key = split_member_name(file).key;
    if (!std::binary_search(known.begin(), known.end(), hash_of(key))) continue;
    for (std::size_t i = 0; i < index.samples(); ++i) {
      if (index.key(i) != key) continue;
      if (all_are_packed(index, options))
        fail("{}: all {} files, with these names and sizes, are already in the pack", options.pack.string(),
             options.files.size());
      fail("{}: {} already has a sample '{}': exclude the file or rename it", file, index.file().string(),
           key);
    }
  }
}

/// A number greater than all numbers in the names of the pack's shards.
std::size_t first_free_number(const Index& index) {
  std::size_t free = index.shards();
  for (std::size_t s = 0; s < index.shards(); ++s) {
    std::string_view name = index.shard_name(s);
    if (!name.starts_with("shard-")) continue;
    name.remove_prefix(6);
    std::size_t number = 0;
    const auto end = std::from_chars(name.data(), name.data() + name.size(), number);
    if (end.ec == std::errc()) free = std::max(free, number + 1);
  }
  return free;
}

std::string purpose_of(const AppendOptions& options, const Index& base, const fs::path& folder) {
  return nlohmann::json({{"append", 2},
                         {"to", folder.string()},
                         {"index", to_hex(base.digest())},
                         {"folder", fs::weakly_canonical(options.folder).string()},
                         {"shard_bytes", options.shard_bytes}})
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// Moves the new shards into the pack, then replaces the index.
std::uint64_t publish(const fs::path& folder, const fs::path& unfinished, const Index& base,
                      const Journal& journal, FileSystem& system) {
  journal.each([&](const Journal::Entry& entry) {
    const std::string name(entry.index.shard_name(0));
    if (system.status(unfinished / kPack / name)) system.rename(unfinished / kPack / name, folder / name);
  });
  system.sync_folder(folder);
  const IndexPieces pieces = [&](const std::function<void(const Index&)>& use) {
    use(base);
    pieces_of(journal)(use);
  };
  const std::uint64_t bytes = write_index(unfinished / kIndex, base.token_bytes(), pieces, system);
  system.rename(unfinished / kIndex, folder / kIndexName);
  system.sync_folder(folder);
  return bytes;
}

/// Removes shards that a killed call has moved into the pack and that the index does not name.
void remove_strays(const fs::path& folder, std::size_t first, FileSystem& system) {
  for (std::size_t number = first; system.status(folder / shard_file_name(number)); ++number)
    system.unlink(folder / shard_file_name(number));
}

}  // namespace

PackingResult append(const AppendOptions& options) {
  if (options.files.empty()) fail("{}: nothing to append", options.folder.string());
  FileSystem& system = options.system != nullptr ? *options.system : FileSystem::real();
  const fs::path folder = folder_of(options.pack);
  Unfinished unfinished(folder / kUnfinished, folder, system);
  const Index base = Index::load(folder / kIndexName);  // after locking, so that no other call replaces it
  if (options.token_bytes && *options.token_bytes != base.token_bytes()) {
    fail("{} has tokens of {} bytes (0: none), but --token-bytes is {}", base.file().string(),
         base.token_bytes(), *options.token_bytes);
  }
  refuse_known_keys(base, options);
  const fs::path growing = unfinished.folder() / kPack;
  (void)system.make_folder(growing, 0755);
  Journal journal(unfinished.folder() / kJournal, purpose_of(options, base, folder), system);
  const std::size_t first = first_free_number(base);
  try {
    const Destination destination{.folder = growing,
                                  .first_number = first,
                                  .token_bytes = base.token_bytes(),
                                  .place = [&](const std::string& name) {
                                    return system.status(growing / name) ? growing / name : folder / name;
                                  }};
    PackingResult result = pack_files(options, destination, journal, system);
    result.pack_bytes += publish(folder, unfinished.folder(), base, journal, system);
    remove_strays(folder, first + journal.shards(), system);
    return result;
  } catch (...) {
    fail_keeping_whole_shards(unfinished, journal);
  }
}

}  // namespace lockstep::pack
