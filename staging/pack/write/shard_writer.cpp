#include "staging/pack/write/shard_writer.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include "common/error.h"

namespace lockstep::pack {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;

}  // namespace

void ShardWriter::Free::operator()(archive* writer) const {
  archive_write_free(writer);
}

void ShardWriter::Free::operator()(archive_entry* entry) const {
  archive_entry_free(entry);
}

ShardWriter::ShardWriter(std::filesystem::path path, FileSystem& system)
    : path_(std::move(path)),
      system_(system),
      fd_(system_.open(path_, O_WRONLY | O_CREAT | O_EXCL)),
      entry_(archive_entry_new()),
      archive_(archive_write_new()) {
  buffer_.reserve(kBuffer);
  archive* writer = archive_.get();
  // GNU's format keeps names as bytes in any locale, and allows long names and payloads over 8 GiB.
  archive_write_set_format_gnutar(writer);
  archive_write_set_bytes_per_block(writer, 0);  // emit() gets every byte at once, so offsets are exact
  archive_write_set_bytes_in_last_block(writer, 1);
  const auto emit_from_c = [](archive* from, void* self, const void* bytes, std::size_t count) -> la_ssize_t {
    auto* shard = static_cast<ShardWriter*>(self);
    if (shard->abandoned_) return -1;
    try {
      shard->emit({static_cast<const std::byte*>(bytes), count});
    } catch (const std::exception& error) {  // no exception may cross libarchive's frames
      shard->failure_ = error.what();
      archive_set_error(from, EIO, "write failed");
      return -1;
    }
    return static_cast<la_ssize_t>(count);
  };
  check(archive_write_open(writer, this, nullptr, emit_from_c, nullptr));
}

ShardWriter::~ShardWriter() {
  abandoned_ = true;  // otherwise freeing an unfinished archive would write its end
}

std::uint64_t ShardWriter::begin(const std::string& name, std::uint64_t size) {
  archive_entry* entry = archive_entry_clear(entry_.get());
  archive_entry_copy_pathname(entry, name.c_str());
  archive_entry_set_size(entry, static_cast<std::int64_t>(size));
  archive_entry_set_filetype(entry, AE_IFREG);
  archive_entry_set_perm(entry, 0644);
  archive_entry_set_mtime(entry, 0, 0);
  archive_entry_set_uid(entry, 0);
  archive_entry_set_gid(entry, 0);
  check(archive_write_header(archive_.get(), entry));
  return size_;
}

void ShardWriter::write(std::span<const std::byte> payload) {
  if (payload.empty()) return;
  const la_ssize_t put = archive_write_data(archive_.get(), payload.data(), payload.size());
  check(put);
  if (static_cast<std::size_t>(put) != payload.size())
    fail("{}: a member is longer than its header says", path_.string());
}

void ShardWriter::finish() {
  check(archive_write_close(archive_.get()));
  flush();
  system_.sync(fd_.get(), path_);
}

void ShardWriter::check(std::int64_t code) {
  if (code >= ARCHIVE_OK) return;
  if (!failure_.empty()) throw Error(failure_);
  fail("cannot write {}: {}", path_.string(), archive_error_string(archive_.get()));
}

void ShardWriter::emit(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBuffer) flush();
  if (bytes.size() >= kBuffer) {
    put(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void ShardWriter::flush() {
  put(buffer_);
  buffer_.clear();
}

void ShardWriter::put(std::span<const std::byte> bytes) {
  hasher_.update(bytes);  // large pieces are several times faster than header by header
  system_.write_at(fd_.get(), bytes, written_, path_);
  written_ += bytes.size();
}

}  // namespace lockstep::pack
