#include "staging/pack/write/journal.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "common/error.h"

namespace lockstep::pack {
namespace {

// A record consists of words of 8 bytes: the number of words that follow, the bytes of the index, the number
// of files, the files' times, the index, and a checksum of the record and of the checksum before it. The
// header is a record without files that holds the purpose instead of an index.
constexpr std::size_t kFixedWords = 4;

std::uint64_t words_for(std::uint64_t bytes) {
  return (bytes + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t);
}

std::uint64_t checksum_of(std::uint64_t before, std::span<const std::uint64_t> words) {
  Hasher hasher(Hasher::Width::bits64);
  hasher.update(std::as_bytes(std::span(&before, 1)));
  hasher.update(std::as_bytes(words));
  return hasher.value();
}

}  // namespace

struct Journal::Record {
  std::vector<std::uint64_t> words;  // empty if there is no such record

  static Record make(std::uint64_t before, std::string_view content, std::span<const std::int64_t> times) {
    Record record;
    record.words.resize(kFixedWords + times.size() + words_for(content.size()));
    record.words[0] = record.words.size() - 1;
    record.words[1] = content.size();
    record.words[2] = times.size();
    std::copy(times.begin(), times.end(), reinterpret_cast<std::int64_t*>(&record.words[3]));
    if (!content.empty()) std::memcpy(&record.words[3 + times.size()], content.data(), content.size());
    record.words.back() = checksum_of(before, std::span(record.words).first(record.words.size() - 1));
    return record;
  }

  bool follows(std::uint64_t before) const {
    return words.size() >= kFixedWords && words[2] <= words.size() - kFixedWords &&
           words[1] <= words.size() * sizeof(std::uint64_t) &&
           words.size() == kFixedWords + words[2] + words_for(words[1]) &&
           words.back() == checksum_of(before, std::span(words).first(words.size() - 1));
  }
  std::uint64_t checksum() const { return words.back(); }
  std::uint64_t bytes() const { return words.size() * sizeof(std::uint64_t); }
  std::span<const std::byte> content() const {
    return std::as_bytes(std::span(words)).subspan((3 + words[2]) * sizeof(std::uint64_t), words[1]);
  }
  std::span<const std::int64_t> times() const {
    return {reinterpret_cast<const std::int64_t*>(&words[3]), words[2]};
  }
};

Journal::Journal(std::filesystem::path file, std::string_view purpose, FileSystem& system)
    : file_(std::move(file)), system_(system) {
  if (system_.status(file_)) {
    fd_ = system_.open(file_, O_RDWR | O_NOFOLLOW);
    load(purpose);
    if (!ends_.empty()) return;
    fd_.reset();
    system_.unlink(file_);
  }
  create(purpose);
}

void Journal::create(std::string_view purpose) {
  fd_ = system_.open(file_, O_RDWR | O_CREAT | O_EXCL);
  const Record header = Record::make(0, purpose, {});
  system_.write_at(fd_.get(), std::as_bytes(std::span(header.words)), 0, file_);
  ends_ = {header.bytes()};
  checksums_ = {header.checksum()};
}

/// The words at `offset`; fewer at the end of the file.
std::vector<std::uint64_t> Journal::read_words(std::uint64_t offset, std::uint64_t count) const {
  std::vector<std::uint64_t> words(count);
  const auto bytes = std::as_writable_bytes(std::span(words));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::size_t got = system_.read_at(fd_.get(), bytes.subspan(done), offset + done, file_);
    if (got == 0) break;
    done += got;
  }
  words.resize(done / sizeof(std::uint64_t));
  return words;
}

void Journal::load(std::string_view purpose) {
  const std::optional<struct stat> status = system_.status(file_);
  const std::uint64_t size = status ? static_cast<std::uint64_t>(status->st_size) / sizeof(std::uint64_t) : 0;
  std::uint64_t offset = 0;
  std::uint64_t before = 0;
  for (;;) {
    const std::vector<std::uint64_t> length = read_words(offset, 1);
    if (length.empty() || length[0] >= size) return;
    const Record record{read_words(offset, length[0] + 1)};
    if (record.words.size() != length[0] + 1 || !record.follows(before)) return;
    if (ends_.empty()) {
      const auto content = record.content();
      other_purpose_ =
          std::string_view(reinterpret_cast<const char*>(content.data()), content.size()) != purpose;
      if (other_purpose_) return;
    }
    offset += record.bytes();
    before = record.checksum();
    ends_.push_back(offset);
    checksums_.push_back(before);
  }
}

void Journal::add(std::string_view index, std::span<const std::int64_t> changed_ns) {
  const Record record = Record::make(checksums_.back(), index, changed_ns);
  system_.write_at(fd_.get(), std::as_bytes(std::span(record.words)), ends_.back(), file_);
  ends_.push_back(ends_.back() + record.bytes());
  checksums_.push_back(record.checksum());
}

void Journal::keep(std::size_t count) {
  if (count >= shards()) return;
  // Writes a new file: old records after the new end could later be taken for valid ones.
  const std::filesystem::path shorter = file_.string() + ".new";
  system_.remove_all(shorter);
  UniqueFd fd = system_.open(shorter, O_RDWR | O_CREAT | O_EXCL);
  for (std::size_t n = 0; n <= count; ++n) {
    const std::uint64_t begin = n == 0 ? 0 : ends_[n - 1];
    const std::vector<std::uint64_t> words = read_words(begin, (ends_[n] - begin) / sizeof(std::uint64_t));
    system_.write_at(fd.get(), std::as_bytes(std::span(words)), begin, shorter);
  }
  system_.sync(fd.get(), shorter);
  system_.rename(shorter, file_);
  fd_ = std::move(fd);
  ends_.resize(count + 1);
  checksums_.resize(count + 1);
}

Journal::Record Journal::read(std::size_t shard) const {
  const std::uint64_t begin = ends_[shard];
  Record record{read_words(begin, (ends_[shard + 1] - begin) / sizeof(std::uint64_t))};
  if (!record.follows(checksums_[shard])) fail("{} changed while in use", file_.string());
  return record;
}

void Journal::each(const std::function<void(const Entry&)>& use) const {
  for (std::size_t s = 0; s < shards(); ++s) {
    const Record record = read(s);
    Entry entry{Index::parse(record.content(), file_), {}};
    entry.changed_ns.assign(record.times().begin(), record.times().end());
    if (entry.index.shards() != 1 || entry.changed_ns.size() != entry.index.parts())
      fail("{}: the record of shard {} is damaged: remove the folder", file_.string(), s);
    use(entry);
  }
}

}  // namespace lockstep::pack
