#include "staging/transfer/put.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "common/clock.h"
#include "common/error.h"
#include "common/units.h"
#include "staging/cache/store.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/transfer/check.h"
#include "staging/transfer/copy.h"
#include "staging/transfer/parallel.h"
#include "staging/transfer/source.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

constexpr int kThreads = 4;
constexpr int kMostThreads = 32;

/// Puts one source.
class Put {
 public:
  Put(cache::Store& store, FileSystem& system, Source source, const PutOptions& options)
      : store_(store),
        system_(system),
        source_(std::move(source)),
        options_(options),
        threads_(options.threads > 0 ? std::min(options.threads, kMostThreads) : kThreads),
        identity_(identify(source_)),
        name_(object_name(source_, identity_)) {
    result_.source = source_.given;
    result_.object = name_;
  }

  PutResult run() {
    const std::uint64_t begin = monotonic_ns();
    if (!reuse()) {
      const cache::Hold lock = store_.lock(name_, FileSystem::LockKind::exclusive, waiting());
      // Another process may have done the work while we waited for the lock. Damage that was seen once is
      // looked for everywhere, since a quick check may miss it the second time.
      if (!reuse_locked(result_.note.empty() ? options_.verify : Verify::full)) {
        if (store_.has(name_)) store_.remove(name_);
        copy();
      }
    }
    result_.path = store_.files(name_);
    if (source_.one_file) result_.path /= source_.shards.front();
    result_.seconds = seconds_between(begin, monotonic_ns());
    return result_;
  }

 private:
  std::function<void()> waiting() {
    return [this] {
      if (!waited_ && options_.waiting) options_.waiting(source_.given);
      waited_ = true;
    };
  }

  bool reuse() {
    const cache::Hold lock = store_.lock(name_, FileSystem::LockKind::shared, waiting());
    return reuse_locked(options_.verify);
  }

  bool reuse_locked(Verify verify) {
    if (!store_.has(name_)) return false;
    try {
      check_copy(store_.files(name_), verify, threads_);
      result_.bytes = store_.info(name_).bytes;
      result_.hit = true;
      result_.note.clear();
      return true;
    } catch (const Error& damage) {
      result_.note = fmt::format("the cached copy was damaged and is copied again ({})", damage.what());
      return false;
    }
  }

  void copy() {
    cache::Incoming incoming = store_.begin(name_);
    const pack::Index index = fetch_index(incoming.files());
    check_room(index, incoming.files());
    fetch_shards(index, incoming.files());
    if (!same(identity_, identify(source_))) changed();
    incoming.publish({.name = name_, .source = shown_source(), .bytes = result_.bytes});
  }

  /// Copies the index before it is looked at: a mapping of the source's would be SIGBUS if that were
  /// truncated.
  pack::Index fetch_index(const fs::path& into) {
    const fs::path file = into / pack::kIndexName;
    const auto size = static_cast<std::uint64_t>(identity_.status.st_size);
    copy_file(system_, source_.index_file(), file, {.size = size, .copied = {}, .stop = {}});
    result_.from_source += size;
    pack::Index index = pack::Index::load(file, source_.index_file());
    if (index.digest() != identity_.index) changed();
    if (!source_.shards.empty()) {
      const fs::path part = into / ".part";
      system_.write_file(part, index.subset(chosen(index)), 0600);
      system_.rename(part, file);
      index = pack::Index::load(file, source_.index_file());
    }
    result_.bytes += index.file_bytes();
    return index;
  }

  std::vector<std::size_t> chosen(const pack::Index& index) const {
    std::vector<std::size_t> shards;
    for (const std::string& name : source_.shards) {
      const std::size_t s = index.find_shard(name);
      if (s == index.shards()) {
        fail("not packed: {} is none of the shards of {}", (source_.folder / name).string(),
             index.file().string());
      }
      shards.push_back(s);
    }
    std::sort(shards.begin(), shards.end());
    return shards;
  }

  static std::uint64_t shard_bytes(const pack::Index& index) {
    std::uint64_t bytes = 0;
    for (std::size_t s = 0; s < index.shards(); ++s) bytes += index.shard(s).size;
    return bytes;
  }

  /// Before anything is copied; allocate() is what decides when others fill the disk meanwhile.
  void check_room(const pack::Index& index, const fs::path& folder) const {
    struct statvfs disk {};
    if (::statvfs(folder.c_str(), &disk) != 0) return;
    const std::uint64_t free = disk.f_bavail * disk.f_frsize;
    const std::uint64_t needed = shard_bytes(index);
    if (needed > free) {
      fail("{} needs {}, and the cache {} has {} free; make room there", source_.given, format_bytes(needed),
           options_.cache_dir.string(), format_bytes(free));
    }
  }

  void fetch_shards(const pack::Index& index, const fs::path& into) {
    for (std::size_t s = 0; s < index.shards(); ++s) pack::check_shard_size(source_.folder, index, s);
    const std::uint64_t total = shard_bytes(index);
    std::mutex mutex;
    std::uint64_t done = 0;
    const auto copied = [&](std::uint64_t bytes) {
      const std::lock_guard lock(mutex);
      done += bytes;
      if (options_.progress) options_.progress(source_.given, done, total);
    };
    parallel_for(index.shards(), threads_, [&](std::size_t s, const std::function<bool()>& stop) {
      const fs::path from = source_.folder / index.shard_name(s);
      const CopyOptions copy_options{.size = index.shard(s).size, .copied = copied, .stop = stop};
      const pack::Digest digest = copy_file(system_, from, into / index.shard_name(s), copy_options);
      if (digest != index.shard(s).digest) {
        fail(
            "{} does not match its index (xxh3 {}, {} expected): damaged, or changed after it was packed; "
            "run lockstep-pack "
            "verify, then pack again",
            from.string(), pack::to_hex(digest), pack::to_hex(index.shard(s).digest));
      }
    });
    result_.bytes += total;
    result_.from_source += total;
  }

  std::string shown_source() const {
    return (source_.one_file ? source_.folder / source_.shards.front() : source_.folder).string();
  }

  [[noreturn]] void changed() const {
    fail("{} changed while it was copied; stage it again when nobody writes to it", source_.folder.string());
  }

  cache::Store& store_;
  FileSystem& system_;
  Source source_;
  const PutOptions& options_;
  int threads_;
  Identity identity_;
  std::string name_;
  PutResult result_;
  bool waited_ = false;
};

}  // namespace

Verify parse_verify(std::string_view text) {
  if (text == "quick") return Verify::quick;
  if (text == "full") return Verify::full;
  if (text == "off") return Verify::off;
  fail_usage("verify '{}' is none of quick, full and off", text);
}

std::vector<PutResult> put(const std::vector<std::string>& sources, const PutOptions& options) {
  FileSystem& system = options.file_system != nullptr ? *options.file_system : FileSystem::real();
  std::vector<Source> resolved;
  resolved.reserve(sources.size());
  for (const std::string& source : sources) resolved.push_back(resolve_source(source));
  cache::Store store(fs::absolute(options.cache_dir), system);
  store.recover();
  std::vector<PutResult> results;
  results.reserve(resolved.size());
  for (Source& source : resolved) results.push_back(Put(store, system, std::move(source), options).run());
  return results;
}

}  // namespace lockstep::transfer
