#include "staging/pack/formats/megatron_index.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "common/error.h"
#include "common/files.h"
#include "staging/pack/file_status.h"
#include "staging/pack/formats/megatron_layout.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

template <typename... Args>
[[noreturn]] void damaged_index(const fs::path& file, fmt::format_string<Args...> format, Args&&... args) {
  fail("{}: damaged Megatron index: {}: make it again with the program that wrote it", file.string(),
       fmt::format(format, std::forward<Args>(args)...));
}

/// Takes fields and tables from the front of the bytes, and checks that each is complete.
class FieldReader {
 public:
  FieldReader(std::span<const std::byte> rest, const fs::path& file) : rest_(rest), file_(file) {}

  template <typename T>
  const std::byte* take(std::uint64_t count, const char* what) {
    if (count > rest_.size() / sizeof(T))
      damaged_index(file_, "{} bytes are left, too few for {} {}", rest_.size(), count, what);
    const std::byte* table = rest_.data();
    rest_ = rest_.subspan(count * sizeof(T));
    return table;
  }

  template <typename T>
  T field(const char* what) {
    T value;
    std::memcpy(&value, take<T>(1, what), sizeof(T));
    return value;
  }

  std::size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  const fs::path& file_;
};

}  // namespace

MegatronIndex MegatronIndex::load(const fs::path& file) {
  const UniqueFd fd = open_file(file, O_RDONLY);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail_errno("cannot stat {}", file.string());
  if (!S_ISREG(status.st_mode)) fail("{} is not a regular file", file.string());
  MappedFile mapping(fd.get(), static_cast<std::size_t>(status.st_size), file);
  MegatronIndex index = parse(mapping.bytes(), file);
  index.mapping_ = std::move(mapping);
  return index;
}

MegatronIndex MegatronIndex::parse(std::span<const std::byte> bytes, const fs::path& name) {
  MegatronIndex index;
  index.file_ = name;
  index.bytes_ = bytes;
  FieldReader tables(bytes, name);
  const std::byte* magic = tables.take<char>(sizeof(megatron::kMagic), "bytes of the magic");
  if (std::memcmp(magic, "TNTIDX\0\0", 8) == 0) fail("{}: {}", name.string(), kOldMegatron);
  if (std::memcmp(magic, megatron::kMagic, sizeof(megatron::kMagic)) != 0)
    fail("{}: not a Megatron-Core index", name.string());
  const auto version = tables.field<std::uint64_t>("version");
  if (version != megatron::kVersion)
    fail("{}: version {} of Megatron's index is not supported, only version {}", name.string(), version,
         megatron::kVersion);
  const auto code = tables.field<std::uint8_t>("type");
  if (code == 0 || code > megatron::kTypes.size())
    fail(
        "{}: its type code {} is none of Megatron's: it was written by a fork with other codes: write it again with Megatron-Core",
        name.string(), code);
  index.type_ = megatron::kTypes[code - 1U];
  index.sequences_ = tables.field<std::uint64_t>("number of sequences");
  constexpr std::uint64_t kEntryBytes = sizeof(std::int32_t) + sizeof(std::int64_t);
  const bool fairseq = tables.left() % kEntryBytes == 0 && tables.left() / kEntryBytes == index.sequences_;
  if (!fairseq) index.document_entries_ = tables.field<std::uint64_t>("number of documents");
  index.lengths_ = tables.take<std::int32_t>(index.sequences_, "lengths");
  index.offsets_ = tables.take<std::int64_t>(index.sequences_, "offsets");
  index.documents_ = tables.take<std::int64_t>(index.document_entries_, "documents");
  // Multimodal data have a mode for each sequence, which this library does not need.
  if (tables.left() != 0 && tables.left() != index.sequences_)
    damaged_index(name, "{} bytes are left over; expected none, or {} modes", tables.left(),
                  index.sequences_);
  index.check_type(code);
  index.check_sequences();
  if (!fairseq) index.check_documents();
  return index;
}

/// Compares the type with the size of a token that the offsets show.
void MegatronIndex::check_type(unsigned code) {
  for (std::size_t i = 0; i + 1 < sequences_; ++i) {
    const auto tokens = at<std::int32_t>(lengths_, i);
    if (tokens <= 0) continue;
    const std::int64_t bytes = at<std::int64_t>(offsets_, i + 1) - at<std::int64_t>(offsets_, i);
    if (bytes == std::int64_t{tokens} * bytes_of(type_)) return;
    const TokenType other = type_ == TokenType::f64 ? TokenType::f32 : TokenType::f64;
    if ((type_ == TokenType::f32 || type_ == TokenType::f64) &&
        bytes == std::int64_t{tokens} * bytes_of(other)) {
      type_ = other;
      return;
    }
    if (at<std::int64_t>(offsets_, i) == 0 && bytes > 0 && bytes % tokens == 0 &&
        (bytes / tokens & (bytes / tokens - 1)) == 0 && bytes / tokens <= 8)
      fail(
          "{}: its type code {} means {} ({} bytes), but its offsets are those of tokens of {} bytes: it was written by a fork of Megatron with other codes: write it again with Megatron-Core",
          file_.string(), code, name_of(type_), bytes_of(type_), bytes / tokens);
    return;
  }
}

void MegatronIndex::check_sequences() {
  const auto token = static_cast<std::uint64_t>(bytes_of(type_));
  std::uint64_t end = 0;  // grows by at most 2^31 * 8 for each sequence, and is checked each time
  for (std::size_t i = 0; i < sequences_; ++i) {
    const auto tokens = at<std::int32_t>(lengths_, i);
    if (tokens < 0) damaged_index(file_, "sequence {} has {} tokens", i, tokens);
    if (offset(i) != end)
      damaged_index(file_, "sequence {} begins at byte {} of the data, but the one before it ends at {}", i,
                    at<std::int64_t>(offsets_, i), end);
    const std::uint64_t next = end + static_cast<std::uint64_t>(tokens) * token;
    if (next > megatron::kMaxBytes)
      damaged_index(file_, "sequence {} ends at byte {}, beyond any possible file", i, next);
    end = next;
  }
  data_bytes_ = end;
}

void MegatronIndex::check_documents() const {
  std::uint64_t before = 0;
  for (std::size_t d = 0; d < document_entries_; ++d) {
    const std::uint64_t sequence = document(d);
    if ((d == 0 && sequence != 0) || sequence < before || sequence > sequences_)
      damaged_index(file_, "document {} begins at sequence {} of {}", d, at<std::int64_t>(documents_, d),
                    sequences_);
    before = sequence;
  }
  if (before != sequences_)
    damaged_index(file_, "its documents end at sequence {}, but it has {} sequences", before, sequences_);
}

fs::path megatron_data(const fs::path& index) {
  fs::path data = index;
  return data.replace_extension(".bin");
}

void check_megatron_data(const MegatronIndex& index) {
  const fs::path data = megatron_data(index.file());
  const auto size = static_cast<std::uint64_t>(status_of_file(data).st_size);
  if (size == index.data_bytes()) return;
  const std::string shown = index.file().filename().string();
  if (size > index.data_bytes())
    fail("{} does not match {}: {} bytes, {} expected: they were not written together", data.string(), shown,
         size, index.data_bytes());
  std::size_t low = 0;  // becomes the first sequence whose end is missing
  for (std::size_t high = index.sequences() - 1; low < high;) {
    const std::size_t middle = low + (high - low) / 2;
    if (index.offset(middle + 1) > size) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  fail("{} does not match {}: truncated to {} bytes, {} expected; the first lost sequence is {} at offset {}",
       data.string(), shown, size, index.data_bytes(), low, index.offset(low));
}

}  // namespace lockstep::pack
