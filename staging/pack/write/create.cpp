#include "staging/pack/write/create.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "common/error.h"
#include "staging/pack/file_status.h"
#include "staging/pack/index.h"
#include "staging/pack/member_name.h"
#include "staging/pack/write/file_loader.h"
#include "staging/pack/write/packer.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

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
std::vector<FileState> states_of(const CreateOptions& options, std::size_t count) {
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
std::string difference(const Journal::Entry& entry, const CreateOptions& options,
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

struct ReusableShards {
  std::size_t shards = 0;
  std::size_t files = 0;  ///< in these shards
  std::string changed;    ///< why there are no more: names the first file that has changed; or ""
};

/// Finds the leading shards of the journal that this call would write again in the same way: they hold exactly the first
/// files of the list, the sizes and times of these files have not changed, and each shard ends at the same sample.
/// `folder` holds the complete shards.
ReusableShards find_reusable_shards(const CreateOptions& options, const Journal& journal,
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

}  // namespace

Unfinished::Unfinished(std::filesystem::path folder, const std::filesystem::path& what, FileSystem& system)
    : folder_(std::move(folder)), system_(system) {
  for (;;) {
    (void)system_.make_folder(folder_, 0755);
    std::optional<UniqueFd> fd = system_.open_if_there(folder_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!fd) continue;  // another call has just ended and removed it
    // The lock distinguishes a running call from a killed one.
    if (!system_.lock(fd->get(), FileSystem::LockKind::exclusive, false, folder_))
      fail("{} is being packed by another process", what.string());
    struct stat locked {};
    const std::optional<struct stat> named = system_.status(folder_);
    if (::fstat(fd->get(), &locked) == 0 && named && locked.st_ino == named->st_ino) {
      lock_ = std::move(*fd);
      return;
    }
  }
}

Unfinished::~Unfinished() {
  if (keep_) return;
  try {
    system_.remove_all(folder_);
  } catch (const Error&) {
    return;  // the error that ended the call is being reported, and the next call tries again
  }
}

void publish_pack(const fs::path& pack, const fs::path& out, FileSystem& system) {
  system.sync_folder(pack);
  system.rename(pack, out);
  system.sync_folder(out.parent_path());
}

namespace {

/// Removes the journal that a call left when it was killed just after publishing.
void clear_published(const fs::path& out, FileSystem& system) {
  const fs::path hidden = unfinished_folder(out);
  if (!system.status(hidden) || system.status(hidden / kPack)) return;
  const Unfinished removed(hidden, out, system);
}

/// Describes the call: a call continues another one only if these values are equal.
std::string purpose_of(const CreateOptions& options) {
  return nlohmann::json({{"create", 2},
                         {"folder", fs::weakly_canonical(options.folder).string()},
                         {"shard_bytes", options.shard_bytes},
                         {"token_bytes", options.token_bytes}})
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// Gives the loaded files to the packer, sample by sample.
class FilePacker {
 public:
  FilePacker(const CreateOptions& options, Packer& packer, CreateResult& done)
      : options_(options), packer_(packer), done_(done) {}

  void add_sample(std::string_view key, std::vector<LoadedFile>& files) {
    if (options_.token_bytes != 0 && files.size() > 1) {
      fail(
          "{} and {} are parts of one sample, but a sample of tokens is one file: rename one of them (a sample's name ends at the first dot)",
          files[0].path, files[1].path);
    }
    std::uint64_t bytes = 0;
    for (const LoadedFile& file : files) bytes += member_bytes(file.size);
    packer_.begin_sample(key, bytes);
    for (LoadedFile& file : files) add_part(file);
  }

 private:
  void add_part(LoadedFile& file) {
    if (options_.token_bytes != 0 && file.size % static_cast<unsigned>(options_.token_bytes) != 0) {
      fail("{} has {} bytes, which is not a multiple of the token size, {}: see --token-bytes", full(file),
           file.size, options_.token_bytes);
    }
    packer_.begin_part(split_member_name(file.path).kind, file.size, file.changed_ns);
    if (file.loaded()) {
      packer_.write(file.content);
    } else {
      stream(file);
    }
    packer_.end_part(file.xxh3);
    done_.payload_bytes += file.size;
    ++files_;
    if (options_.progress) options_.progress(done_.continued_files + files_, done_.payload_bytes);
  }

  /// A file that is too large for the loader's window.
  void stream(LoadedFile& file) {
    Hasher hasher(Hasher::Width::bits64);
    buffer_.resize(std::size_t{1} << 20);
    std::uint64_t done = 0;
    while (done <= file.size) {
      const ssize_t got = ::read(file.fd.get(), buffer_.data(), buffer_.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_errno("cannot read {}", full(file));
      if (got == 0) break;
      done += static_cast<std::uint64_t>(got);
      if (done > file.size) break;
      const auto block = std::span<const std::byte>(buffer_).first(static_cast<std::size_t>(got));
      hasher.update(block);
      packer_.write(block);
      if (options_.stop != nullptr && options_.stop->load()) throw Stopped("stopped");
      if (options_.progress) options_.progress(done_.continued_files + files_, done_.payload_bytes + done);
    }
    struct stat status {};
    if (done != file.size || ::fstat(file.fd.get(), &status) != 0 || modified_ns(status) != file.modified_ns)
      fail("{} changed while it was being packed: pack again when no program writes to it", full(file));
    file.xxh3 = hasher.value();
  }

  std::string full(const LoadedFile& file) const { return (options_.folder / file.path).string(); }

  const CreateOptions& options_;
  Packer& packer_;
  CreateResult& done_;
  std::vector<std::byte> buffer_;
  std::size_t files_ = 0;
};

/// Keeps the complete shards of an earlier call that are still valid, and tells the user. Returns how many
/// files they hold.
std::size_t files_packed_before(const CreateOptions& options, const fs::path& folder, Journal& journal,
                                FileSystem& system) {
  const auto say = [&](const std::string& line) {
    if (options.notice) options.notice(line);
  };
  if (journal.was_of_another_purpose())
    say("the interrupted call had other options: packing everything again");
  if (journal.shards() == 0) return 0;
  const ReusableShards reusable = find_reusable_shards(options, journal, folder, system);
  journal.keep(reusable.shards);
  if (reusable.shards == 0) {
    say(fmt::format("{}: packing everything again", reusable.changed));
  } else {
    const std::string why = reusable.changed.empty() ? "" : fmt::format(" ({})", reusable.changed);
    say(fmt::format("continuing after {} complete shards with {} of {} files{}", reusable.shards,
                    reusable.files, options.files.size(), why));
  }
  return reusable.files;
}

/// Removes the incomplete shards that a killed call left behind.
void clear_rest(const fs::path& folder, const Journal& journal, FileSystem& system) {
  std::set<std::string, std::less<>> whole;
  journal.each([&](const Journal::Entry& entry) { whole.emplace(entry.index.shard_name(0)); });
  for (const std::string& name : system.list(folder))
    if (whole.find(name) == whole.end()) system.remove_all(folder / name);
}

void count(const Journal& journal, CreateResult& result) {
  journal.each([&](const Journal::Entry& entry) {
    result.samples += entry.index.samples();
    result.parts += entry.index.parts();
    result.shards += 1;
    result.pack_bytes += entry.index.shard(0).size;
  });
}

/// Packs the files into shards and adds them to the journal, after the shards that can be used again. The
/// result counts all of them. Throws Error naming the file; Stopped if asked to stop.
CreateResult pack_files(const CreateOptions& options, const fs::path& folder, Journal& journal,
                        FileSystem& system) {
  CreateResult result;
  const std::size_t first = files_packed_before(options, folder, journal, system);
  result.continued_files = first;
  clear_rest(folder, journal, system);
  journal.each([&](const Journal::Entry& entry) {
    for (std::size_t p = 0; p < entry.index.parts(); ++p) result.payload_bytes += entry.index.part(p).size;
  });
  Packer packer({.folder = folder, .shard_bytes = options.shard_bytes, .token_bytes = options.token_bytes},
                journal, system);
  FilePacker files(options, packer, result);
  FileLoader loader(options.folder, options.files, first, options.threads);
  std::vector<LoadedFile> sample;
  for (std::size_t i = first; i < options.files.size(); ++i) {
    const std::string_view key = split_member_name(options.files[i]).key;
    std::optional<LoadedFile> file = loader.next(options.stop);
    if (!file) throw Stopped("stopped");
    sample.push_back(std::move(*file));
    const bool last = i + 1 == options.files.size() || split_member_name(options.files[i + 1]).key != key;
    if (!last) continue;
    files.add_sample(key, sample);
    sample.clear();
  }
  packer.finish();
  count(journal, result);
  return result;
}

/// For a catch block: keeps the folder if the journal has complete shards, then throws an exception of the same type as
/// the current one, whose message also tells how to continue.
[[noreturn]] void fail_keeping_whole_shards(Unfinished& unfinished, const Journal& journal) {
  const std::string kept =
      journal.shards() == 0
          ? std::string()
          : fmt::format("; {} complete shards are kept: run the same command again to continue",
                        journal.shards());
  if (journal.shards() > 0) unfinished.keep();
  try {
    throw;
  } catch (const Stopped& stopped) {
    throw Stopped(kept.empty() ? "stopped before the first shard was complete: nothing is kept"
                               : stopped.what() + kept);
  } catch (const Error& error) {
    throw Error(error.what() + kept);
  }
}

}  // namespace

fs::path unfinished_folder(const fs::path& out) {
  return out.parent_path() / ("." + out.filename().string() + ".unfinished");
}

fs::path new_folder(const fs::path& name, FileSystem& system) try {
  fs::path out = fs::absolute(name).lexically_normal();
  if (!out.has_filename()) out = out.parent_path();
  if (!fs::is_directory(out.parent_path()))
    fail("{} is not a folder: create it first", out.parent_path().string());
  if (fs::exists(fs::symlink_status(out)) && !(fs::is_directory(out) && fs::is_empty(out))) {
    clear_published(out, system);
    fail("{} already exists: name a new folder with --out", out.string());
  }
  return out;
} catch (const fs::filesystem_error& error) {
  fail("cannot access {}: {}", error.path1().string(), error.code().message());
}

CreateResult create(const CreateOptions& options) {
  if (options.files.empty()) fail("{}: nothing to pack", options.folder.string());
  FileSystem& system = options.system != nullptr ? *options.system : FileSystem::real();
  const fs::path out = new_folder(options.out, system);
  Unfinished unfinished(unfinished_folder(out), out, system);
  const fs::path pack = unfinished.folder() / kPack;
  (void)system.make_folder(pack, 0755);
  Journal journal(unfinished.folder() / kJournal, purpose_of(options), system);
  try {
    CreateResult result = pack_files(options, pack, journal, system);
    result.pack_bytes += write_index(pack / kIndexName, options.token_bytes, journal, system);
    publish_pack(pack, out, system);
    return result;
  } catch (...) {
    fail_keeping_whole_shards(unfinished, journal);
  }
}

}  // namespace lockstep::pack
