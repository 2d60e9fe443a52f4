#include "staging/pack/formats/megatron_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "staging/pack/file_status.h"
#include "staging/pack/formats/megatron_layout.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFileBuffer = std::size_t{1} << 20;
constexpr std::size_t kHeader = 34;

TokenType written_as(TokenType type) {
  if (type == TokenType::u32) return TokenType::i32;
  if (type == TokenType::u64) return TokenType::i64;
  return type;
}

std::uint8_t code_of(TokenType type) {
  const auto* found = std::find(megatron::kTypes.begin(), megatron::kTypes.end(), type);
  return static_cast<std::uint8_t>(found - megatron::kTypes.begin() + 1);
}

/// Appends to a file through a buffer.
class BufferedFile {
 public:
  BufferedFile(UniqueFd fd, fs::path path) : fd_(std::move(fd)), path_(std::move(path)) {}

  void add(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kFileBuffer) flush();
    if (bytes.size() >= kFileBuffer) {
      write_all(fd_.get(), text(bytes), path_);
    } else {
      buffer_.append(text(bytes));
    }
  }
  template <typename T>
  void add_number(T number) {
    add(std::as_bytes(std::span(&number, 1)));
  }
  void flush() {
    write_all(fd_.get(), buffer_, path_);
    buffer_.clear();
  }
  void sync() {
    flush();
    if (::fsync(fd_.get()) != 0) fail_errno("cannot sync {}", path_.string());
  }
  int fd() const { return fd_.get(); }
  const fs::path& path() const { return path_; }

 private:
  static std::string_view text(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  UniqueFd fd_;
  fs::path path_;
  std::string buffer_;
};

/// Calls `each` for `count` numbers of a file from `offset` on.
template <typename T, typename Each>
void for_each_number(const BufferedFile& file, std::uint64_t offset, std::uint64_t count, const Each& each) {
  std::vector<T> block(kFileBuffer / sizeof(T));
  while (count > 0) {
    const auto numbers = std::span(block).first(std::min<std::uint64_t>(count, block.size()));
    const ssize_t got = read_at(file.fd(), std::as_writable_bytes(numbers), offset);
    if (got < 0) fail_errno("cannot read {}", file.path().string());
    if (static_cast<std::size_t>(got) < numbers.size_bytes())
      fail("{} was truncated while it was being written", file.path().string());
    for (const T number : numbers) each(number);
    count -= numbers.size();
    offset += numbers.size_bytes();
  }
}

fs::path with(const fs::path& prefix, const char* end) {
  return fs::path(prefix.string() + end);
}

fs::path hidden(const fs::path& prefix, const char* end) {
  return prefix.parent_path() / fmt::format(".{}{}.unfinished", prefix.filename().string(), end);
}

bool is_there(const fs::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
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

class MegatronWriter::Files {
 public:
  Files(const fs::path& prefix, TokenType type)
      : prefix_(prefix),
        from_(type),
        type_(written_as(type)),
        data_(begin_data(prefix), hidden(prefix, ".bin")),
        index_(open_file(hidden(prefix, ".idx"), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW),
               hidden(prefix, ".idx")),
        documents_(open_file(hidden(prefix, ".documents"), O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW),
                   hidden(prefix, ".documents")) {
    const std::string space(kHeader, '\0');  // the header is written at the end, when the counts are known
    index_.add(std::as_bytes(std::span(space)));
    documents_.add_number(std::int64_t{0});
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  ~Files() {
    ::unlink(documents_.path().c_str());
    if (finished_) return;
    ::unlink(index_.path().c_str());
    ::unlink(data_.path().c_str());
  }

  void add(std::span<const std::byte> tokens) {
    const auto token = static_cast<std::size_t>(std::max(1, bytes_of(type_)));
    const std::size_t count = tokens.size() / token;
    if (tokens.size() % token != 0)
      fail("{}: sequence {} has {} bytes, which is not a multiple of the size of {} tokens", name(),
           sequences, tokens.size(), pack::name_of(from_));
    if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
      fail("{}: sequence {} has {} tokens, more than Megatron's index allows: split it", name(), sequences,
           count);
    if (from_ != type_) check_range(tokens, count);
    data_.add(tokens);
    index_.add_number(static_cast<std::int32_t>(count));
    data_bytes += tokens.size();
    ++sequences;
  }

  void end_document() {
    documents_.add_number(static_cast<std::int64_t>(sequences));
    in_documents_ = sequences;
    ++documents;
  }

  void finish() {
    if (sequences == 0) fail("{}: there are no sequences to write", name());
    if (in_documents_ != sequences)
      fail("{}: {} sequences are not in a document", name(), sequences - in_documents_);
    index_.flush();
    documents_.flush();
    std::int64_t offset = 0;
    for_each_number<std::int32_t>(index_, kHeader, sequences, [&](std::int32_t length) {
      index_.add_number(offset);
      offset += std::int64_t{length} * bytes_of(type_);
    });
    for_each_number<std::int64_t>(documents_, 0, documents + 1,
                                  [&](std::int64_t sequence) { index_.add_number(sequence); });
    write_header();
    data_.sync();
    index_.sync();
    publish();
  }

  std::string name() const { return with(prefix_, ".idx").string(); }
  TokenType type() const { return type_; }

  std::uint64_t sequences = 0;
  std::uint64_t documents = 0;
  std::uint64_t data_bytes = 0;

 private:
  /// The lock on the hidden .bin excludes other processes. A .bin beside a hidden .idx was left by a process
  /// that was killed between the two renames.
  static UniqueFd begin_data(const fs::path& prefix) {
    if (is_there(with(prefix, ".idx"))) fail("{} already exists", with(prefix, ".idx").string());
    if (is_there(with(prefix, ".bin")) && !is_there(hidden(prefix, ".idx")))
      fail("{} already exists", with(prefix, ".bin").string());
    const fs::path path = hidden(prefix, ".bin");
    UniqueFd fd = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
      fail("{} is being written by another process", prefix.string());
    struct stat ours {};
    struct stat named {};
    if (::fstat(fd.get(), &ours) != 0 || ::stat(path.c_str(), &named) != 0 || ours.st_ino != named.st_ino)
      fail("{} has just been written by another process", prefix.string());
    ::unlink(with(prefix, ".bin").c_str());
    if (::ftruncate(fd.get(), 0) != 0) fail_errno("cannot truncate {}", path.string());
    return fd;
  }

  void check_range(std::span<const std::byte> tokens, std::size_t count) const {
    const std::size_t bad = from_ == TokenType::u32 ? first_too_large<std::uint32_t>(tokens)
                                                    : first_too_large<std::uint64_t>(tokens);
    if (bad < count)
      fail("{}: token {} of sequence {} does not fit into type {}", name(), bad, sequences,
           pack::name_of(type_));
  }

  void write_header() {
    std::string header(megatron::kMagic, sizeof(megatron::kMagic));
    const auto append = [&](auto number) {
      header.append(reinterpret_cast<const char*>(&number), sizeof(number));
    };
    append(megatron::kVersion);
    append(code_of(type_));
    append(sequences);
    append(documents + 1);
    if (::pwrite(index_.fd(), header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()))
      fail_errno("cannot write {}", index_.path().string());
  }

  void publish() {
    const auto rename = [](const fs::path& from, const fs::path& to) {
      if (::rename(from.c_str(), to.c_str()) != 0)
        fail_errno("cannot rename {} to {}", from.string(), to.string());
    };
    rename(data_.path(), with(prefix_, ".bin"));
    rename(index_.path(), with(prefix_, ".idx"));
    finished_ = true;
    const fs::path folder = parent_of(prefix_);
    const UniqueFd fd = open_file(folder, O_RDONLY | O_DIRECTORY);
    if (::fsync(fd.get()) != 0) fail_errno("cannot sync {}", folder.string());
  }

  fs::path prefix_;
  TokenType from_;
  TokenType type_;
  BufferedFile data_;
  BufferedFile index_;
  BufferedFile documents_;
  std::uint64_t in_documents_ = 0;
  bool finished_ = false;
};

MegatronWriter::MegatronWriter(const fs::path& prefix, TokenType type) {
  if (type == TokenType::none)
    fail_usage("{}: Megatron's format is for tokens, and these samples are not tokens", prefix.string());
  if (!prefix.has_filename())
    fail_usage("{}: a Megatron dataset needs a name, such as the PREFIX of PREFIX.bin", prefix.string());
  files_ = std::make_unique<Files>(prefix, type);
}

MegatronWriter::~MegatronWriter() = default;

TokenType MegatronWriter::written_type() const {
  return files_->type();
}

void MegatronWriter::add_sequence(std::span<const std::byte> tokens) {
  files_->add(tokens);
}

void MegatronWriter::end_document() {
  files_->end_document();
}

std::uint64_t MegatronWriter::sequences() const {
  return files_->sequences;
}

std::uint64_t MegatronWriter::documents() const {
  return files_->documents;
}

std::uint64_t MegatronWriter::data_bytes() const {
  return files_->data_bytes;
}

void MegatronWriter::finish() {
  files_->finish();
}

}  // namespace lockstep::pack
