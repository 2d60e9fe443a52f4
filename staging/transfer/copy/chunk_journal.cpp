#include "staging/transfer/copy/chunk_journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>

namespace lockstep::transfer {
namespace {

constexpr std::uint32_t kVersion = 1;

struct Header {
  std::array<char, 8> magic{'L', 'O', 'C', 'K', 'J', 'R', 'N', 'L'};
  std::uint32_t version = kVersion;
  std::uint32_t chunk_bytes = 0;
  pack::Digest plan{};
};
static_assert(sizeof(Header) == 32);

struct Record {
  std::uint64_t chunk = 0;
  pack::Digest digest{};
  std::uint64_t check = 0;
};
static_assert(sizeof(Record) == 32);

std::uint64_t check_of(const Record& record) {
  return pack::xxh3_64(std::as_bytes(std::span(&record, 1)).first(offsetof(Record, check)));
}

// Records from the header to the end, or to one that is damaged.
std::vector<DoneChunk> read_records(FileSystem& system, int fd, const std::filesystem::path& file) {
  std::vector<DoneChunk> found;
  std::vector<Record> records(4096);
  for (std::uint64_t at = sizeof(Header);;) {
    const std::size_t got =
        system.read_at(fd, std::as_writable_bytes(std::span(records)), at, file) / sizeof(Record);
    for (std::size_t i = 0; i < got; ++i) {
      if (records[i].check != check_of(records[i])) return found;
      found.push_back({records[i].chunk, records[i].digest});
    }
    at += got * sizeof(Record);
    if (got < records.size()) return found;
  }
}

bool read_header(FileSystem& system, int fd, const std::filesystem::path& file, Header& header) {
  const auto bytes = std::as_writable_bytes(std::span(&header, 1));
  return system.read_at(fd, bytes, 0, file) == sizeof header && header.magic == Header().magic &&
         header.version == kVersion;
}

}  // namespace

ChunkJournal::Content ChunkJournal::read(FileSystem& system, const std::filesystem::path& file) {
  const std::optional<UniqueFd> fd = system.open_if_there(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  Header header;
  if (!fd || !read_header(system, fd->get(), file, header)) return {};
  return {header.chunk_bytes, header.plan, read_records(system, fd->get(), file)};
}

ChunkJournal::ChunkJournal(FileSystem& system, std::filesystem::path file, const pack::Digest& plan,
                           std::uint32_t chunk_bytes)
    : system_(system), file_(std::move(file)), fd_(system.open(file_, O_RDWR | O_CREAT | O_NOFOLLOW, 0644)) {
  Header header;
  if (read_header(system_, fd_.get(), file_, header) && header.chunk_bytes == chunk_bytes &&
      header.plan == plan) {
    found_ = read_records(system_, fd_.get(), file_);
  } else {
    header = Header();
    header.chunk_bytes = chunk_bytes;
    header.plan = plan;
    fd_.reset();
    system_.unlink(file_);
    fd_ = system_.open(file_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    system_.write_at(fd_.get(), std::as_bytes(std::span(&header, 1)), 0, file_);
  }
  end_ = sizeof header + found_.size() * sizeof(Record);
}

void ChunkJournal::add(const std::vector<DoneChunk>& chunks) {
  if (chunks.empty()) return;
  std::vector<Record> records(chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    records[i].chunk = chunks[i].chunk;
    records[i].digest = chunks[i].digest;
    records[i].check = check_of(records[i]);
  }
  const auto bytes = std::as_bytes(std::span(records));
  system_.write_at(fd_.get(), bytes, end_, file_);
  system_.sync(fd_.get(), file_);
  end_ += bytes.size();
}

}  // namespace lockstep::transfer
