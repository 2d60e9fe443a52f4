#include "staging/pack/create.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "common/error.h"
#include "common/files.h"
#include "staging/pack/index.h"
#include "staging/pack/index_builder.h"
#include "staging/pack/member_name.h"
#include "staging/pack/ordered_loader.h"
#include "staging/pack/shard_writer.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

/// A new folder under a hidden name beside the final one; removed unless it is published.
class Unfinished {
 public:
  explicit Unfinished(const fs::path& out)
      : out_(out), hidden_(out.parent_path() / ("." + out.filename().string() + ".unfinished")) {
    if (fs::exists(out) && !(fs::is_directory(out) && fs::is_empty(out))) {
      fail("{} exists already; name a new folder with --out", out.string());
    }
    claim();
    for (const fs::directory_entry& entry : fs::directory_iterator(hidden_))
      fs::remove_all(entry);  // of a killed call
  }

  ~Unfinished() {
    std::error_code ignored;
    if (!published_) fs::remove_all(hidden_, ignored);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  const fs::path& folder() const { return hidden_; }

  void publish() {
    sync(hidden_);
    if (::rename(hidden_.c_str(), out_.c_str()) != 0)
      fail_errno("cannot rename {} to {}", hidden_.string(), out_.string());
    published_ = true;
    sync(out_.parent_path());
  }

 private:
  /// Makes the folder and locks it; the lock tells a live call from one that was killed.
  void claim() {
    for (;;) {
      if (::mkdir(hidden_.c_str(), 0755) != 0 && errno != EEXIST)
        fail_errno("cannot create {}", hidden_.string());
      UniqueFd fd(::open(hidden_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!fd && errno == ENOENT) continue;  // a call that ends just now took it away
      if (!fd) fail_errno("cannot open {}", hidden_.string());
      if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK) fail("{} is being packed by another process", out_.string());
        fail_errno("cannot lock {}", hidden_.string());
      }
      struct stat locked {};
      struct stat named {};
      if (::fstat(fd.get(), &locked) == 0 && ::stat(hidden_.c_str(), &named) == 0 &&
          locked.st_ino == named.st_ino) {
        lock_ = std::move(fd);
        return;
      }
    }
  }

  static void sync(const fs::path& folder) {
    const UniqueFd fd = open_file(folder, O_RDONLY | O_DIRECTORY);
    if (::fsync(fd.get()) != 0) fail_errno("cannot sync {}", folder.string());
  }

  fs::path out_;
  fs::path hidden_;
  UniqueFd lock_;
  bool published_ = false;
};

/// Puts samples into shards and the index, one after the other.
class Packer {
 public:
  Packer(const CreateOptions& options, fs::path folder)
      : options_(options), folder_(std::move(folder)), index_(options.token_bytes) {}

  void add_sample(std::string_view key, std::vector<LoadedFile>& files) {
    if (options_.token_bytes != 0 && files.size() > 1) {
      fail(
          "{} and {} are parts of one sample, and a pack of tokens has one file per sample; rename one (what "
          "follows the "
          "first dot is not part of a sample's name)",
          files[0].path, files[1].path);
    }
    std::uint64_t bytes = 0;
    for (const LoadedFile& file : files) bytes += kHeader + (file.size + kHeader - 1) / kHeader * kHeader;
    if (shard_ && shard_->size() + bytes > options_.shard_bytes) end_shard();
    if (!shard_) begin_shard();
    index_.add_sample(key);
    for (LoadedFile& file : files) add_part(file);
  }

  CreateResult finish() {
    end_shard();
    const std::string index = index_.finish();
    write_file_atomically(folder_ / kIndexName, index, 0644);
    result_.samples = index_.samples();
    result_.parts = index_.parts();
    result_.shards = index_.shards();
    result_.pack_bytes += index.size();
    return result_;
  }

 private:
  static constexpr std::uint64_t kHeader = 512;

  void begin_shard() {
    const std::string name = fmt::format("shard-{:06}.tar", index_.shards());
    index_.begin_shard(name);
    shard_.emplace(folder_ / name);
  }

  void end_shard() {
    shard_->finish();
    index_.end_shard(shard_->size(), shard_->digest());
    result_.pack_bytes += shard_->size();
    shard_.reset();
  }

  void add_part(LoadedFile& file) {
    if (options_.token_bytes != 0 && file.size % static_cast<unsigned>(options_.token_bytes) != 0) {
      fail("{} is {} bytes long, no whole number of tokens of {} bytes; see --token-bytes",
           (options_.folder / file.path).string(), file.size, options_.token_bytes);
    }
    const std::uint64_t offset = shard_->begin(file.path, file.size);
    if (file.loaded()) {
      shard_->write(file.content);
    } else {
      stream(file);
    }
    index_.add_part(split_member_name(file.path).kind, offset, file.size, file.xxh3);
    result_.payload_bytes += file.size;
    ++files_;
    if (options_.progress) options_.progress(files_, result_.payload_bytes);
  }

  /// A file that is too large for the loader's window.
  void stream(LoadedFile& file) {
    Hasher hasher(Hasher::Width::bits64);
    buffer_.resize(std::size_t{1} << 20);
    std::uint64_t done = 0;
    for (;;) {
      const ssize_t got = ::read(file.fd.get(), buffer_.data(), buffer_.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail_errno("cannot read {}", (options_.folder / file.path).string());
      done += static_cast<std::uint64_t>(got);
      if (got == 0 || done > file.size) break;
      const auto block = std::span<const std::byte>(buffer_).first(static_cast<std::size_t>(got));
      hasher.update(block);
      shard_->write(block);
    }
    if (done != file.size) {
      fail("{} changed while it was packed; pack again when nobody writes to it",
           (options_.folder / file.path).string());
    }
    file.xxh3 = hasher.value();
  }

  const CreateOptions& options_;
  fs::path folder_;
  IndexBuilder index_;
  std::optional<ShardWriter> shard_;
  std::vector<std::byte> buffer_;
  std::size_t files_ = 0;
  CreateResult result_;
};

/// The final folder, absolute and without a slash at its end.
fs::path final_folder(const fs::path& given) {
  fs::path out = fs::absolute(given).lexically_normal();
  if (!out.has_filename()) out = out.parent_path();
  if (!fs::is_directory(out.parent_path()))
    fail("{} is not a folder; create it first", out.parent_path().string());
  return out;
}

}  // namespace

CreateResult create(const CreateOptions& options) {
  if (options.files.empty()) fail("{}: nothing to pack", options.folder.string());
  const fs::path out = final_folder(options.out);
  const int threads = options.threads > 0
                          ? options.threads
                          : static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2U, 16U));
  Unfinished unfinished(out);
  Packer packer(options, unfinished.folder());
  OrderedLoader loader(options.folder, options.files, threads);

  std::vector<LoadedFile> sample;
  for (std::size_t i = 0; i < options.files.size(); ++i) {
    const std::string_view key = split_member_name(options.files[i]).key;
    sample.push_back(loader.next());
    const bool last = i + 1 == options.files.size() || split_member_name(options.files[i + 1]).key != key;
    if (!last) continue;
    packer.add_sample(key, sample);
    sample.clear();
  }
  const CreateResult result = packer.finish();
  unfinished.publish();
  return result;
}

}  // namespace lockstep::pack
