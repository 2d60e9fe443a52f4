#include "staging/pack/write/reusable_shards.h"

#include <sys/stat.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "staging/pack/file_status.h"
#include "staging/pack/member_name.h"
#include "staging/pack/write/file_loader.h"
#include "staging/pack/write/packer.h"

namespace lockstep::pack {
namespace {

struct FileState {
  std::uint64_t size = 0;
  std::int64_t changed_ns = 0;
  bool exists = false;
};

FileState state_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return {static_cast<std::uint64_t>(status.st_size), changed_ns(status), true};
}

/// The states of the first files. Many threads ask, since each file may cost a round trip on a network file
/// system.
std::vector<FileState> states_of(const PackingOptions& options, std::size_t count) {
  constexpr std::size_t kThreads = 32;
  constexpr std::size_t kAtATime = 64;
  std::vector<FileState> states(count);
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < std::min(kThreads, count / kAtATime + 1); ++t) {
    threads.emplace_back([&] {
      for (std::size_t begin = next.fetch_add(kAtATime); begin < count; begin = next.fetch_add(kAtATime)) {
        if (options.stop != nullptr && options.stop->load()) return;
        for (std::size_t i = begin; i < std::min(begin + kAtATime, count); ++i)
          states[i] = state_of(options.folder / options.files[i]);
      }
    });
  }
  threads.clear();
  return states;
}

/// The end of the sample that begins with file `begin`.
std::size_t sample_end(const std::vector<std::string>& files, std::size_t begin) {
  std::size_t end = begin;
  while (end < files.size() && split_member_name(files[end]).key == split_member_name(files[begin]).key)
    ++end;
  return end;
}

/// Compares the record of one shard with the files from `first` on. Names the first difference, or returns
/// "".
std::string difference(const Journal::Entry& entry, const PackingOptions& options,
                       const std::vector<FileState>& states, std::size_t first) {
  const Index& index = entry.index;
  for (std::size_t i = 0; i < index.samples(); ++i) {
    for (std::size_t p = index.first_part(i); p < index.first_part(i + 1); ++p) {
      const layout::PartRecord& part = index.part(p);
      const std::string name = join_member_name(index.key(i), index.kind(part));
      const std::size_t file = first + p;
      if (file >= options.files.size() || options.files[file] != name)
        return "the list of files differs, beginning with " + name;
      const FileState& state = states[file];
      if (!state.exists || state.size != part.size || state.changed_ns != entry.changed_ns[p])
        return (options.folder / name).string() + " has changed";
    }
  }
  return {};
}

}  // namespace

ReusableShards find_reusable_shards(const PackingOptions& options, const Journal& journal,
                                    const std::filesystem::path& folder, FileSystem& system) {
  ReusableShards reusable;
  if (journal.shards() == 0) return reusable;
  std::size_t packed = 0;
  journal.each([&](const Journal::Entry& entry) { packed += entry.index.parts(); });
  const std::size_t known = std::min(packed, options.files.size());
  const std::size_t next = known < options.files.size() ? sample_end(options.files, known) : known;
  const std::vector<FileState> states = states_of(options, next);
  if (options.stop != nullptr && options.stop->load()) throw Stopped("stopped");

  std::vector<std::size_t> ends;  // files up to each shard's end
  std::vector<std::uint64_t> sizes;
  journal.each([&](const Journal::Entry& entry) {
    if (!reusable.changed.empty()) return;
    const std::size_t first = ends.empty() ? 0 : ends.back();
    const std::filesystem::path shard = folder / entry.index.shard_name(0);
    const std::optional<struct stat> status = system.status(shard);
    if (!status || static_cast<std::uint64_t>(status->st_size) != entry.index.shard(0).size) {
      reusable.changed = shard.string() + " has changed";
    } else {
      reusable.changed = difference(entry, options, states, first);
    }
    if (!reusable.changed.empty()) return;
    ends.push_back(first + entry.index.parts());
    sizes.push_back(entry.index.shard(0).size);
  });
  // The last shard ended because the next sample did not fit: that must still be true.
  if (!ends.empty() && ends.back() < options.files.size()) {
    std::uint64_t bytes = 0;
    bool exist = true;
    for (std::size_t i = ends.back(); i < sample_end(options.files, ends.back()); ++i) {
      bytes += member_bytes(states[i].size);
      exist = exist && states[i].exists;  // a missing file is reported when it is packed
    }
    const bool same_sample = split_member_name(options.files[ends.back() - 1]).key ==
                             split_member_name(options.files[ends.back()]).key;
    if (same_sample || (exist && fits(sizes.back(), bytes, options.shard_bytes))) {
      if (reusable.changed.empty()) reusable.changed = options.files[ends.back()] + " has changed or is new";
      ends.pop_back();
    }
  }
  reusable.shards = ends.size();
  reusable.files = ends.empty() ? 0 : ends.back();
  return reusable;
}

}  // namespace lockstep::pack
