#include "staging/pack/write/create.h"

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "staging/pack/file_status.h"
#include "staging/pack/index.h"
#include "staging/pack/member_name.h"
#include "staging/pack/write/file_loader.h"
#include "staging/pack/write/journal.h"
#include "staging/pack/write/packer.h"
#include "staging/pack/write/reusable_shards.h"
#include "staging/pack/write/unfinished.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

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

/// Where the shards are written.
struct Destination {
  std::filesystem::path folder;
  int token_bytes = 0;  ///< if not 0, every file is one sample and must be a multiple of this size
};

/// Gives the loaded files to the packer, sample by sample.
class FilePacker {
 public:
  FilePacker(const PackingOptions& options, int token_bytes, Packer& packer, PackingResult& done)
      : options_(options), token_bytes_(token_bytes), packer_(packer), done_(done) {}

  void add_sample(std::string_view key, std::vector<LoadedFile>& files) {
    if (token_bytes_ != 0 && files.size() > 1) {
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
    if (token_bytes_ != 0 && file.size % static_cast<unsigned>(token_bytes_) != 0) {
      fail("{} has {} bytes, which is not a multiple of the token size, {}: see --token-bytes", full(file),
           file.size, token_bytes_);
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

  const PackingOptions& options_;
  int token_bytes_;
  Packer& packer_;
  PackingResult& done_;
  std::vector<std::byte> buffer_;
  std::size_t files_ = 0;
};

/// Keeps the complete shards of an earlier call that are still valid, and tells the user. Returns how many
/// files they hold.
std::size_t files_packed_before(const PackingOptions& options, const Destination& destination,
                                Journal& journal, FileSystem& system) {
  const auto say = [&](const std::string& line) {
    if (options.notice) options.notice(line);
  };
  if (journal.was_of_another_purpose())
    say("the interrupted call had other options: packing everything again");
  if (journal.shards() == 0) return 0;
  const ReusableShards reusable = find_reusable_shards(options, journal, destination.folder, system);
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

void count(const Journal& journal, PackingResult& result) {
  journal.each([&](const Journal::Entry& entry) {
    result.samples += entry.index.samples();
    result.parts += entry.index.parts();
    result.shards += 1;
    result.pack_bytes += entry.index.shard(0).size;
  });
}

/// Packs the files into shards and adds them to the journal, after the shards that can be used again. The
/// result counts all of them. Throws Error naming the file; Stopped if asked to stop.
PackingResult pack_files(const PackingOptions& options, const Destination& destination, Journal& journal,
                         FileSystem& system) {
  PackingResult result;
  const std::size_t first = files_packed_before(options, destination, journal, system);
  result.continued_files = first;
  clear_rest(destination.folder, journal, system);
  journal.each([&](const Journal::Entry& entry) {
    for (std::size_t p = 0; p < entry.index.parts(); ++p) result.payload_bytes += entry.index.part(p).size;
  });
  Packer packer({.folder = destination.folder,
                 .shard_bytes = options.shard_bytes,
                 .token_bytes = destination.token_bytes},
                journal, system);
  FilePacker files(options, destination.token_bytes, packer, result);
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
    const Destination destination{.folder = pack, .token_bytes = options.token_bytes};
    CreateResult result = pack_files(options, destination, journal, system);
    result.pack_bytes += write_index(pack / kIndexName, options.token_bytes, journal, system);
    publish_pack(pack, out, system);
    return result;
  } catch (...) {
    fail_keeping_whole_shards(unfinished, journal);
  }
}

}  // namespace lockstep::pack
