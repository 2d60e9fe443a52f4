#include "staging/pack/formats/side_index.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kEnds = 4096;
/// Must change when the index of the same file would have other content.
constexpr int kVersion = 1;

Digest state_of(const DataFile& file, std::string_view also) {
  std::string text = fmt::format("{}\n{}\n{}\n{}\n{}\n", kVersion, also, file.path().filename().string(),
                                 file.size(), file.modified_ns());
  text += file.read_some(0, kEnds);
  if (file.size() > kEnds) text += file.read_some(file.size() - kEnds, kEnds);
  return digest_of(std::as_bytes(std::span(text)));
}

std::optional<fs::path> cache_folder() {
  if (const auto folder = environment::get("XDG_CACHE_HOME")) return fs::path(*folder) / "lockstep/index";
  if (const auto home = environment::get("HOME")) return fs::path(*home) / ".cache/lockstep/index";
  return {};
}

/// The caller's lock on the data keeps other processes from the unfinished file. A file that a killed process
/// left is overwritten.
void write_beside(const fs::path& path, const std::string& bytes) {
  const fs::path unfinished = path.string() + std::string(kUnfinishedEnd);
  {
    const UniqueFd fd = open_file(unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
    try {
      write_all(fd.get(), bytes, unfinished);
      if (::fsync(fd.get()) != 0) fail_errno("cannot sync {}", unfinished.string());
      if (::rename(unfinished.c_str(), path.c_str()) != 0) fail_errno("cannot write {}", path.string());
    } catch (...) {
      ::unlink(unfinished.c_str());
      throw;
    }
  }
}

/// In the cache folder an index is named after its data's state, so that copies share it. This symbolic link, named
/// after the data's path, leads to the last index that was made for that path.
std::optional<fs::path> latest_link(const DataFile& file) {
  const auto folder = cache_folder();
  if (!folder) return {};
  const std::string path = fs::weakly_canonical(file.path()).string();
  return *folder / (to_hex(digest_of(std::as_bytes(std::span(path)))) + ".latest");
}

/// A file that lost records at its end but is otherwise unchanged was cut by accident (an aborted copy, a full disk); a
/// file that was written again has other records. `earlier` is an index of the file or of its earlier state, and may
/// not exist.
void refuse_if_cut(const DataFile& file, const Index& now, const fs::path& earlier) {
  std::optional<Index> before;
  try {
    before = Index::load(earlier);
  } catch (const Error&) {
    return;  // there is none, or it is damaged
  }
  if (before->shards() != 1 || before->shard(0).size <= file.size() || before->samples() <= now.samples() ||
      before->first_part(now.samples()) != now.parts())
    return;
  for (std::size_t p = 0; p < now.parts(); ++p) {
    const layout::PartRecord& was = before->part(p);
    const layout::PartRecord& is = now.part(p);
    if (was.offset != is.offset || was.size != is.size || was.xxh3 != is.xxh3) return;
  }
  fail("{} had {} records when it was indexed, has {} now: restore the file, or remove {} to use it as it is",
       file.path().string(), before->samples(), now.samples(), earlier.string());
}

bool store(const fs::path& path, const std::string& bytes, bool beside) {
  try {
    if (beside) {
      write_beside(path, bytes);
    } else {
      fs::create_directories(path.parent_path());
      write_file_atomically(path, bytes);
    }
    return true;
  } catch (const Error&) {
    return false;
  } catch (const fs::filesystem_error&) {
    return false;
  }
}

}  // namespace

bool has_side_index(Format format) {
  return format == Format::tfrecord || format == Format::recordio;
}

fs::path side_index_of(const fs::path& file) {
  return file.parent_path() / side_index_name(file.filename().string());
}

bool is_side_index_for(const fs::path& index, std::uint64_t data_bytes) {
  try {
    const Index loaded = Index::load(index);
    return loaded.shards() == 1 && loaded.shard(0).size == data_bytes;
  } catch (const Error&) {
    return false;  // damaged
  }
}

SideIndex::SideIndex(const DataFile& file, std::string_view also,
                     const std::function<void(IndexBuilder&)>& scan) {
  const Digest state = state_of(file, also);
  const auto load_any = [&] {
    for (const fs::path& place : places(file, state)) {
      if (load(place, file, state)) return true;
    }
    return false;
  };
  if (load_any()) return;
  // The ranks of a job come here together: one reads the file, and the others wait for its result. If the
  // file system has no locks, each rank makes its own index.
  const UniqueFd lock = open_file(file.path(), O_RDONLY);
  const bool locked = ::flock(lock.get(), LOCK_EX) == 0;
  if (locked && load_any()) return;
  make(file, state, scan, locked);
}

std::vector<fs::path> SideIndex::places(const DataFile& file, const Digest& state) {
  std::vector<fs::path> places = {side_index_of(file.path())};
  if (const auto folder = cache_folder()) places.push_back(*folder / (to_hex(state) + ".lockstep"));
  return places;
}

bool SideIndex::load(const fs::path& path, const DataFile& file, const Digest& state) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  try {
    Index index = Index::load(path);
    if (index.shards() != 1 || index.shard(0).size != file.size() || index.shard(0).digest != state)
      return false;
    index_ = std::move(index);
    return true;
  } catch (const Error&) {
    return false;  // damaged
  }
}

void SideIndex::make(const DataFile& file, const Digest& state,
                     const std::function<void(IndexBuilder&)>& scan, bool locked) {
  std::string bytes;
  {
    IndexBuilder builder(0);
    builder.begin_shard(file.path().filename().string());
    scan(builder);
    if (builder.samples() == 0) throw NoSamples(fmt::format("{} holds no records", file.path().string()));
    builder.end_shard(file.size(), state);
    bytes = builder.finish();
  }
  memory_.resize((bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
  std::memcpy(memory_.data(), bytes.data(), bytes.size());
  index_ = Index::parse(std::as_bytes(std::span(memory_)).first(bytes.size()), file.path());
  const auto link = latest_link(file);
  refuse_if_cut(file, index_, side_index_of(file.path()));
  if (link) refuse_if_cut(file, index_, *link);
  made_ = true;
  for (const fs::path& place : places(file, state)) {
    const bool beside = place.parent_path() == file.path().parent_path();
    if (beside && !locked) continue;
    if (!store(place, bytes, beside) || !load(place, file, state)) continue;
    if (!beside) {
      std::error_code ignored;
      fs::remove(*link, ignored);
      fs::create_symlink(place.filename(), *link, ignored);
    }
    memory_ = {};
    return;
  }
}

}  // namespace lockstep::pack
