#include "staging/transfer/put_one.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "common/clock.h"
#include "common/error.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/transfer/check.h"
#include "staging/transfer/copy/parallel.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMany = 10'000;  // files above which packing pays at once

// The shards that were named, by their numbers.
std::vector<std::size_t> chosen(const pack::Index& index, const Source& source) {
  std::vector<std::size_t> shards;
  for (const std::string& name : source.shards) {
    const std::size_t s = index.find_shard(name);
    if (s == index.shards()) {
      fail("not packed: {} is none of the shards of {}", (source.folder / name).string(),
           index.file().string());
    }
    shards.push_back(s);
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

}  // namespace

PutOne::PutOne(cache::Store& store, FileSystem& system, Limit& limit, HangWatch& watch,
               const PutOptions& options, const std::string& source)
    : store_(store),
      system_(system),
      limit_(limit),
      watch_(watch),
      options_(options),
      given_(source),
      begin_ns_(monotonic_ns()) {
  result_.source = source;
}

PutOne::~PutOne() {
  if (copy_ && copy_->source_failed()) keep();
}

void PutOne::keep() noexcept {
  if (!incoming_ || !copy_) return;
  try {
    copy_->mark();
    incoming_->keep();
  } catch (const std::exception&) {
    // Then it is discarded; the error that led here says more.
  }
}

std::string PutOne::remove_if_damaged() {
  try {
    check_copy(files(), Verify::full, threads());
    return "";
  } catch (const Error& damage) {
    result_.hit = false;
    hold_.reset();
    if (result_.shared) {
      shared_damaged_ = true;
      result_.shared = false;
      note(fmt::format("the shared copy is damaged, tell the admin ({})", damage.what()));
      return damage.what();
    }
    const cache::Hold alone =
        store_.lock(manifest_.object, FileSystem::LockKind::exclusive, {}, options_.copier_patience);
    if (store_.has(manifest_.object)) store_.remove(manifest_.object);
    note(fmt::format("the cached copy was damaged and is copied again ({})", damage.what()));
    return damage.what();
  }
}

void PutOne::resolve() {
  const HangWatch::Call call = watch_.call(given_);
  source_ = resolve_source(given_);
}

// What is being copied would be part of what is to be copied, and all other objects too.
void PutOne::refuse_own_cache() const {
  if (manifest_.packed() || !source_.shards.empty()) return;
  const fs::path inside = fs::weakly_canonical(store_.folder()).lexically_relative(manifest_.folder);
  if (inside.empty() || *inside.begin() == "..") return;
  fail("{}: the cache {} lies in it; name a folder without it, or keep the cache elsewhere", given_,
       store_.folder().string());
}

void PutOne::look() {
  manifest_ = look_at(source_, watch_);
  refuse_own_cache();
  result_.object = manifest_.object;
  if (manifest_.files.size() > kMany) {
    note(fmt::format("{} files; lockstep-pack create makes a few of them, which are staged and read faster",
                     manifest_.files.size()));
  }
}

void PutOne::check_readable() const {
  // Whoever gets the data from other nodes must be able to read it here too.
  const fs::path path = source_.shards.empty() ? source_.folder : source_.paths.front();
  const HangWatch::Call call = watch_.call(path);
  const bool megatron = !system_.status(path);
  if (::access(path.c_str(), R_OK) != 0 && !megatron) fail_errno("cannot open {}", path.string());
}

void PutOne::take_word(const std::string& object, bool packed, const std::string& index,
                       const std::string& files, const std::string& node) {
  word_node_ = node;
  word_files_ = files;
  manifest_ = Manifest();
  manifest_.source = source_;
  manifest_.folder = source_.folder;
  manifest_.object = object;
  result_.object = object;
  const std::optional<Identity> here = identify(source_, watch_);
  if (packed != here.has_value() || (packed && pack::to_hex(here->index) != index)) {
    fail("{} is not what {} sees there; stage it again when nobody writes to it, and all nodes see the same",
         given_, node);
  }
  manifest_.one_file = source_.one_file;
  if (source_.one_file) manifest_.main = source_.shards.front();
  // A pair of files that was named by what their names have in common.
  if (source_.one_file) {
    const HangWatch::Call call = watch_.call(source_.paths.front());
    if (!system_.status(source_.paths.front())) manifest_.main += ".bin";
  }
  if (!packed) return refuse_own_cache();
  manifest_.format = pack::Format::tar;
  manifest_.index = *here;
}

void PutOne::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (result_.note.find(text) != std::string::npos) return;
  result_.note += (result_.note.empty() ? "" : "; ") + text;
}

bool PutOne::check(Verify verify, const fs::path& files) {
  try {
    check_copy(files, verify, threads());
    return true;
  } catch (const Error& damage) {
    if (!damage_seen_)
      note(fmt::format("the cached copy was damaged and is copied again ({})", damage.what()));
    damage_seen_ = true;
    return false;
  }
}

void PutOne::lease() {
  if (!options_.lease.empty()) store_.hold(manifest_.object, options_.lease);
  store_.touch(manifest_.object);
}

// Where a pack's whole index is while it is copied.
fs::path PutOne::index_file() const {
  const bool part = !source_.shards.empty();
  return part ? incoming_->files().parent_path() / "index" : incoming_->files() / pack::kIndexName;
}

void PutOne::begin(std::uint64_t list_bytes) {
  with_room([&] { incoming_.reset(new cache::Incoming(store_.begin(manifest_.object, list_bytes))); },
            manifest_.packed() ? " (for its index alone)" : "");
}

// The cache says how much is needed; which source it is for is known here.
void PutOne::with_room(const std::function<void()>& work, const char* part) const {
  try {
    work();
  } catch (const cache::NoRoom& error) {
    throw cache::NoRoom(fmt::format("{}{} {}", given_, part, error.what()));
  }
}

void PutOne::make_list() {
  begin(manifest_.packed() ? static_cast<std::uint64_t>(manifest_.index.status.st_size) : 0);
  if (manifest_.packed()) {
    fetch_index();
    choose_shards();
  } else if (manifest_.files.empty()) {
    const std::string object = manifest_.object;
    manifest_ = look_at(source_, watch_);
    refuse_own_cache();
    manifest_.object = object;
    if (!word_files_.empty() && state_digest(manifest_) != word_files_) {
      fail(
          "{} is not what {} sees there; stage it again when nobody writes to it, and all nodes see the same",
          given_, word_node_);
    }
  }
}

void PutOne::take_list(const std::string& list) {
  begin(manifest_.packed() ? list.size() : 0);
  if (!manifest_.packed()) return list_from_text(list, manifest_);
  const fs::path local = incoming_->files() / pack::kIndexName;
  if (system_.status(local)) system_.unlink(local);
  system_.write_file(local, list, 0600);
}

std::string PutOne::list_text() const {
  if (!manifest_.packed()) return list_to_text(manifest_);
  return read_text_file((incoming_ ? incoming_->files() : files()) / pack::kIndexName);
}

void PutOne::fetch_index() {
  const fs::path file = index_file();
  if (system_.status(file)) system_.unlink(file);
  // Copied before it is looked at: a mapping of the source's would be SIGBUS if that were truncated.
  const fs::path from = source_.index_file();
  const auto size = static_cast<std::uint64_t>(manifest_.index.status.st_size);
  const UniqueFd source = [&] {
    const HangWatch::Call call = watch_.call(from);
    return system_.open(from, O_RDONLY);
  }();
  const UniqueFd target = system_.open(file, O_WRONLY | O_CREAT | O_EXCL, 0600);
  std::vector<std::byte> buffer(std::min<std::uint64_t>(size, std::uint64_t{1} << 20U));
  for (std::uint64_t done = 0; done < size;) {
    const auto want = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), size - done));
    limit_.take(want.size());
    const std::size_t got = [&] {
      const HangWatch::Call call = watch_.call(from);
      return system_.read_at(source.get(), want, done, from);
    }();
    if (got == 0)
      fail("{} changed while it was copied; stage it again when nobody writes to it", from.string());
    system_.write_at(target.get(), want.first(got), done, file);
    done += got;
  }
  system_.sync(target.get(), file);
  result_.from_source += size;
}

// Only the shards that were named get into the object's index.
void PutOne::choose_shards() {
  const pack::Index index = pack::Index::load(index_file(), source_.index_file());
  if (index.digest() != manifest_.index.index) {
    fail("{} changed while it was copied; stage it again when nobody writes to it",
         source_.index_file().string());
  }
  if (source_.shards.empty()) return;
  const fs::path local = incoming_->files() / pack::kIndexName;
  if (system_.status(local)) system_.unlink(local);
  system_.write_file(local, index.subset(chosen(index, source_)), 0600);
}

void PutOne::use_list(bool check_source) {
  files_.clear();
  if (manifest_.packed()) {
    const pack::Index index = pack::Index::load(incoming_->files() / pack::kIndexName, source_.index_file());
    list_bytes_ = index.file_bytes();
    for (std::size_t s = 0; s < index.shards(); ++s) {
      files_.push_back({std::string(index.shard_name(s)), index.shard(s).size, {}, index.shard(s).digest});
    }
    if (check_source) {
      parallel_for(index.shards(), kMaxThreads, [&](std::size_t s, const std::function<bool()>&) {
        const HangWatch::Call call = watch_.call(source_.folder);
        pack::check_shard_size(source_.folder, index, s);
      });
    }
  } else {
    files_ = manifest_.files;
  }
  std::uint64_t bytes = list_bytes_;
  for (const ManifestFile& file : files_) bytes += file.size;
  result_.bytes = bytes;
  side_indexes_ = std::make_unique<SideIndexes>(system_, limit_, watch_, manifest_, files_);
  with_room([&] { incoming_->reserve(bytes + side_indexes_->bytes()); });
  progress_.total = bytes;
}

void PutOne::start_copy() {
  CopyOptions copy;
  copy.source = manifest_.packed() ? source_.folder : manifest_.folder;
  copy.target = incoming_->files();
  copy.journal = incoming_->files().parent_path() / kJournalName;
  copy.threads = options_.threads;
  copy.chunk_bytes = options_.chunk_bytes;
  copy.mark_bytes = options_.mark_bytes;
  copy.alive = [this] { incoming_->touch(); };
  copy.copied = [this](std::uint64_t bytes) { progressed(bytes); };
  if (options_.listed) {
    std::vector<std::string> names = names_of(files_);
    if (manifest_.packed()) names.emplace_back(pack::kIndexName);
    options_.listed(given_, names);
  }
  if (options_.file) {
    if (manifest_.packed()) complete(std::string(pack::kIndexName));
    copy.complete = [this](std::size_t file) {
      files_[file].digest ? complete(files_[file].name) : complete_unindexed(files_[file]);
    };
  }
  progressed(list_bytes_);
  copy_ = std::make_unique<Copy>(system_, files_, limit_, watch_, std::move(copy));
  result_.resumed = copy_->resumed_bytes();
}

void PutOne::complete(const std::string& name) {
  const fs::path copy = incoming_->files() / name;
  system_.change_mode(copy, 0444);
  options_.file(given_, name, copy);
}

// Nothing says what such a file should be but the source, which must not have changed since it was looked at.
// Where other nodes read parts of it, what all have is compared at the end; nobody reads it before that.
void PutOne::complete_unindexed(const ManifestFile& file) {
  if (options_.circle != nullptr || !file.state) return;
  const fs::path path = manifest_.folder / file.name;
  struct stat status {};
  {
    const HangWatch::Call call = watch_.call(path);
    if (::stat(path.c_str(), &status) != 0) return;  // an error soon, as below
  }
  if (!(FileState::of(status) == *file.state)) return;
  side_indexes_->keep_time(file, incoming_->files());
  complete(file.name);
}

void PutOne::progressed(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  progress_.done += bytes;
  if (incoming_) incoming_->grown(progress_.done);
  if (options_.progress) options_.progress(given_, progress_.done, progress_.total);
  if (!options_.detailed_progress) return;
  progress_.from_source = result_.from_source + (copy_ ? copy_->bytes_from_source() : 0);
  progress_.from_peers = result_.from_peers;
  options_.detailed_progress(given_, progress_);
}

void PutOne::count_from_peer(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  result_.from_peers += bytes;
}

void PutOne::publish() {
  check_unchanged(manifest_, watch_);
  result_.bytes += side_indexes_->copy(incoming_->files());
  result_.from_source += side_indexes_->bytes_from_source();
  if (const std::string left_out = side_indexes_->left_out(); !left_out.empty()) note(left_out);
  cache::ObjectInfo info{.name = manifest_.object,
                         .source = manifest_.shown(),
                         .bytes = result_.bytes,
                         .format = std::string(pack::name_of(manifest_.format))};
  if (!manifest_.packed()) {
    for (std::size_t f = 0; f < files_.size(); ++f) {
      info.files.push_back({files_[f].name, files_[f].size, pack::to_hex(copy_->file_digest(f))});
    }
  }
  result_.from_source += copy_->bytes_from_source();
  const fs::path whole_index = incoming_->files().parent_path() / "index";
  if (system_.status(whole_index)) system_.unlink(whole_index);
  incoming_->publish(info);
  lease();
  // A pack's index says more. Last, since until the object has its name a killed copy is continued from it.
  const fs::path journal = store_.files(manifest_.object).parent_path() / kJournalName;
  if (manifest_.packed() && system_.status(journal)) system_.unlink(journal);
}

cache::ObjectInfo PutOne::info() const {
  return result_.shared ? shared_->info(manifest_.object) : store_.info(manifest_.object);
}

std::string PutOne::content() const {
  if (manifest_.packed()) return "";
  std::string text;
  if (copy_) {
    for (std::size_t f = 0; f < files_.size(); ++f) text += pack::to_hex(copy_->file_digest(f));
  } else {
    for (const cache::ObjectFile& file : info().files) text += file.xxh3;
  }
  return pack::to_hex(pack::digest_of(std::as_bytes(std::span(text))));
}

std::vector<ManifestFile> PutOne::object_files() const {
  std::vector<ManifestFile> list;
  if (manifest_.packed()) {
    const pack::Index index = pack::Index::load(files() / pack::kIndexName);
    for (std::size_t s = 0; s < index.shards(); ++s) {
      list.push_back({std::string(index.shard_name(s)), index.shard(s).size, {}, {}});
    }
  } else {
    for (const cache::ObjectFile& file : info().files) list.push_back({file.name, file.size, {}, {}});
  }
  return list;
}

fs::path PutOne::files() const {
  return result_.shared ? shared_->files(manifest_.object) : store_.files(manifest_.object);
}

PutResult PutOne::result() const {
  PutResult result = result_;
  result.path = files();
  if (manifest_.one_file) result.path /= manifest_.main;
  result.seconds = seconds_between(begin_ns_, monotonic_ns());
  return result;
}

}  // namespace lockstep::transfer
