#include "staging/pack/formats/megatron_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "common/error.h"
#include "common/file_system.h"
#include "common/files.h"
#include "staging/pack/formats/megatron_layout.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFileBuffer = std::size_t{1} << 20;

TokenType written_as(TokenType type) {
  if (type == TokenType::u32) return TokenType::i32;
  if (type == TokenType::u64) return TokenType::i64;
  return type;
}

std::uint8_t code_of(TokenType type) {
  const auto* found = std::find(megatron::kTypes.begin(), megatron::kTypes.end(), type);
  return static_cast<std::uint8_t>(found - megatron::kTypes.begin() + 1);
}

fs::path with(const fs::path& prefix, const char* end) {
  return fs::path(prefix.string() + end);
}

fs::path hidden(const fs::path& prefix, const char* end) {
  return prefix.parent_path() / fmt::format(".{}{}.unfinished", prefix.filename().string(), end);
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename T>
std::string_view text_of(const std::vector<T>& table) {
  return text_of(std::as_bytes(std::span(table)));
}

/// Opens the hidden .bin. A lock on it excludes other processes. A .bin beside a hidden .idx was left by a process that
/// was killed between the two renames.
UniqueFd begin_data(const fs::path& prefix) {
  FileSystem& system = FileSystem::real();
  if (system.status(with(prefix, ".idx"))) fail("{} already exists", with(prefix, ".idx").string());
  if (system.status(with(prefix, ".bin")) && !system.status(hidden(prefix, ".idx")))
    fail("{} already exists", with(prefix, ".bin").string());
  const fs::path path = hidden(prefix, ".bin");
  UniqueFd fd = system.open(path, O_WRONLY | O_CREAT | O_NOFOLLOW);
  if (!system.lock(fd.get(), FileSystem::LockKind::exclusive, false, path))
    fail("{} is being written by another process", prefix.string());
  struct stat ours {};
  const std::optional<struct stat> named = system.status(path);
  if (::fstat(fd.get(), &ours) != 0 || !named || ours.st_ino != named->st_ino)
    fail("{} has just been written by another process", prefix.string());
  system.unlink_if_there(with(prefix, ".bin"));
  if (::ftruncate(fd.get(), 0) != 0) fail_errno("cannot truncate {}", path.string());
  return fd;
}

/// The first unsigned token that does not fit into the signed type of the same size; their number if all fit.
template <typename T>
std::size_t first_too_large(std::span<const std::byte> tokens) {
  for (std::size_t at = 0; at < tokens.size(); at += sizeof(T)) {
    T token;
    std::memcpy(&token, tokens.data() + at, sizeof(T));
    if (token > std::numeric_limits<T>::max() / 2) return at / sizeof(T);
  }
  return tokens.size();
}

}  // namespace

/// The hidden .bin, written through a buffer.
class MegatronWriter::Data {
 public:
  explicit Data(const fs::path& prefix) : path_(hidden(prefix, ".bin")), fd_(begin_data(prefix)) {}

  void add(std::span<const std::byte> tokens) {
    if (buffer_.size() + tokens.size() > kFileBuffer) flush();
    if (tokens.size() >= kFileBuffer) {
      write_all(fd_.get(), text_of(tokens), path_);
    } else {
      buffer_.append(text_of(tokens));
    }
  }

  void sync() {
    flush();
    FileSystem::real().sync(fd_.get(), path_);
  }

 private:
  void flush() {
    write_all(fd_.get(), buffer_, path_);
    buffer_.clear();
  }

  fs::path path_;
  UniqueFd fd_;
  std::string buffer_;
};

MegatronWriter::MegatronWriter(const fs::path& prefix, TokenType type)
    : prefix_(prefix), name_(with(prefix, ".idx").string()), from_(type), written_(written_as(type)) {
  if (type == TokenType::none)
    fail_usage("{}: Megatron's format is for tokens, and these samples are not tokens", prefix.string());
  if (!prefix.has_filename())
    fail_usage("{}: a Megatron dataset needs a name, such as the PREFIX of PREFIX.bin", prefix.string());
  data_ = std::make_unique<Data>(prefix);
}

MegatronWriter::~MegatronWriter() {
  if (!data_) return;
  for (const char* end : {".idx", ".bin"}) ::unlink(hidden(prefix_, end).c_str());
}

void MegatronWriter::add_sequence(std::span<const std::byte> tokens) {
  const auto token = static_cast<std::size_t>(bytes_of(written_));
  const std::size_t count = tokens.size() / token;
  if (tokens.size() % token != 0)
    fail("{}: sequence {} has {} bytes, which is not a multiple of the size of {} tokens", name_, sequences(),
         tokens.size(), name_of(from_));
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    fail("{}: sequence {} has {} tokens, more than Megatron's index allows: split it", name_, sequences(),
         count);
  if (from_ != written_) {
    const std::size_t bad = from_ == TokenType::u32 ? first_too_large<std::uint32_t>(tokens)
                                                    : first_too_large<std::uint64_t>(tokens);
    if (bad < count)
      fail("{}: token {} of sequence {} does not fit into type {}", name_, bad, sequences(),
           name_of(written_));
  }
  data_->add(tokens);
  data_bytes_ += tokens.size();
  lengths_.push_back(static_cast<std::int32_t>(count));
}

void MegatronWriter::end_document() {
  documents_.push_back(std::ssize(lengths_));
}

void MegatronWriter::finish() {
  if (lengths_.empty()) fail("{}: there are no sequences to write", name_);
  if (const auto missing = std::ssize(lengths_) - documents_.back(); missing > 0)
    fail("{}: {} sequences are not in a document", name_, missing);
  data_->sync();
  write_index(hidden(prefix_, ".idx"));
  FileSystem& system = FileSystem::real();
  for (const char* end : {".bin", ".idx"}) system.rename(hidden(prefix_, end), with(prefix_, end));
  data_.reset();
  system.sync_folder(parent_of(prefix_));
}

void MegatronWriter::write_index(const fs::path& file) const {
  FileSystem& system = FileSystem::real();
  const UniqueFd fd = system.open(file, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
  std::string header(megatron::kMagic, sizeof(megatron::kMagic));
  const auto append = [&](auto number) {
    header.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  append(megatron::kVersion);
  append(code_of(written_));
  append(std::uint64_t{lengths_.size()});
  append(std::uint64_t{documents_.size()});
  write_all(fd.get(), header, file);
  write_all(fd.get(), text_of(lengths_), file);
  std::vector<std::int64_t> offsets;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    offsets.push_back(offset);
    offset += std::int64_t{lengths_[i]} * bytes_of(written_);
    if (offsets.size() < kFileBuffer && i + 1 < lengths_.size()) continue;
    write_all(fd.get(), text_of(offsets), file);
    offsets.clear();
  }
  write_all(fd.get(), text_of(documents_), file);
  system.sync(fd.get(), file);
}

}  // namespace lockstep::pack
