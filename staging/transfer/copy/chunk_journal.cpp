#include "staging/transfer/copy/chunk_journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>

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

}  // namespace

ChunkJournal::ChunkJournal(FileSystem& system, std::filesystem::path file, const pack::Digest& plan,
                           std::uint32_t chunk_bytes)
    : system_(system), file_(std::move(file)), fd_(system.open(file_, O_RDWR | O_CREAT | O_NOFOLLOW, 0600)) {
  Header wanted;
  wanted.chunk_bytes = chunk_bytes;
  wanted.plan = plan;
  Header header;
  const auto header_bytes = std::as_writable_bytes(std::span(&header, 1));
  if (system_.read_at(fd_.get(), header_bytes, 0, file_) != sizeof header ||
      std::memcmp(&header, &wanted, sizeof header) != 0) {
    fd_.reset();
    system_.unlink(file_);
    fd_ = system_.open(file_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    system_.write_at(fd_.get(), std::as_bytes(std::span(&wanted, 1)), 0, file_);
    end_ = sizeof wanted;
    return;
  }
  end_ = sizeof header;
  std::vector<Record> records(4096);
  for (;;) {
    const std::size_t got =
        system_.read_at(fd_.get(), std::as_writable_bytes(std::span(records)), end_, file_) / sizeof(Record);
    for (std::size_t i = 0; i < got; ++i) {
      if (records[i].check != check_of(records[i])) return;
      found_.push_back({records[i].chunk, records[i].digest});
      end_ += sizeof(Record);
    }
    if (got < records.size()) return;
  }
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
