#include "staging/pack/write/journal.h"

#include <fcntl.h>

#include <cstring>

#include "common/error.h"

namespace lockstep::pack {
namespace {

constexpr const char* kPurpose = "purpose";

// A record: the size of the index in 8 bytes, the index, and the times of its parts.
Journal::Entry parse(std::string_view record, const std::filesystem::path& file) {
  std::uint64_t size = 0;
  if (record.size() >= sizeof(size)) std::memcpy(&size, record.data(), sizeof(size));
  if (record.size() < sizeof(size) || size > record.size() - sizeof(size))
    fail("{} is damaged", file.string());
  record.remove_prefix(sizeof(size));
  Journal::Entry entry{Index::parse(std::as_bytes(std::span(record.substr(0, size))), file), {}};
  record.remove_prefix(size);
  entry.changed_ns.resize(record.size() / sizeof(std::int64_t));
  if (entry.index.shards() != 1 || entry.index.parts() * sizeof(std::int64_t) != record.size())
    fail("{} is damaged", file.string());
  std::memcpy(entry.changed_ns.data(), record.data(), record.size());
  return entry;
}

}  // namespace

Journal::Journal(std::filesystem::path folder, std::string_view purpose, FileSystem& system)
    : folder_(std::move(folder)), system_(system) {
  if (const auto found = read(folder_ / kPurpose); found == purpose) {
    try {
      for (auto record = read(file(0)); record; record = read(file(shards_))) {
        (void)parse(*record, file(shards_));
        ++shards_;
      }
    } catch (const Error&) {
      keep(shards_);  // the shards from here on are packed again
    }
    return;
  } else {
    other_purpose_ = found.has_value();
  }
  system_.remove_all(folder_);
  (void)system_.make_folder(folder_, 0755);
  write(folder_ / kPurpose, purpose);
}

std::optional<std::string> Journal::read(const std::filesystem::path& file) const {
  const std::optional<UniqueFd> fd = system_.open_if_there(file, O_RDONLY | O_NOFOLLOW);
  if (!fd) return std::nullopt;
  const std::optional<struct stat> status = system_.status(file);
  std::string content(status ? static_cast<std::size_t>(status->st_size) : 0, '\0');
  for (std::size_t done = 0; done < content.size();) {
    const auto rest = std::as_writable_bytes(std::span(content)).subspan(done);
    const std::size_t got = system_.read_at(fd->get(), rest, done, file);
    if (got == 0) fail("{} was truncated while it was being read", file.string());
    done += got;
  }
  return content;
}

void Journal::write(const std::filesystem::path& file, std::string_view content) {
  const std::filesystem::path part = file.string() + ".part";
  system_.remove_all(part);
  system_.write_file(part, content, 0644);
  system_.rename(part, file);
}

void Journal::add(std::string_view index, std::span<const std::int64_t> changed_ns) {
  const std::uint64_t size = index.size();
  std::string record(reinterpret_cast<const char*>(&size), sizeof(size));
  record += index;
  record.append(reinterpret_cast<const char*>(changed_ns.data()), changed_ns.size_bytes());
  write(file(shards_), record);
  ++shards_;
}

// The last record goes first, so that a killed call leaves the records of the first shards.
void Journal::keep(std::size_t shards) {
  std::size_t end = shards;
  while (system_.status(file(end))) ++end;
  while (end > shards) system_.unlink(file(--end));
  shards_ = std::min(shards_, shards);
}

void Journal::each(const std::function<void(const Entry&)>& use) const {
  for (std::size_t s = 0; s < shards_; ++s) {
    const std::optional<std::string> record = read(file(s));
    if (!record) fail("{} was removed while it was in use", file(s).string());
    use(parse(*record, file(s)));
  }
}

}  // namespace lockstep::pack
