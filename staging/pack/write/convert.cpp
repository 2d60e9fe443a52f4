#include "staging/pack/write/convert.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "common/error.h"
#include "staging/pack/file_kind.h"
#include "staging/pack/format.h"
#include "staging/pack/formats/megatron_writer.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/pack/member_name.h"
#include "staging/pack/write/create.h"
#include "staging/pack/write/packer.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

bool is_tar_pack(const fs::path& source) {
  try {
    locate(source);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// The samples of the source, checked against its digests.
class SampleSource {
 public:
  SampleSource(const fs::path& source, const OpenOptions& options)
      : source_(source), reader_(open(source, options)), of_files_(is_tar_pack(source)) {}

  const Reader& reader() const { return *reader_; }
  std::size_t size() const { return reader_->size(); }
  /// Whether the source is a tar pack, whose keys and kinds were file names.
  bool of_files() const { return of_files_; }

  /// The bytes of a part, valid until the next call. Throws Error if they do not match the digest.
  std::span<const std::byte> part(std::size_t i, std::size_t p, const Part& part) {
    constexpr std::uint64_t kMapped = std::uint64_t{16} << 20;  // larger parts are mapped if possible
    if (p == 0 && part.bytes > kMapped && reader_->can_view()) return reader_->view(i);
    buffer_.resize(part.bytes);
    reader_->read_part(i, p, buffer_);
    return buffer_;
  }

  /// "SOURCE, sample 7 (key)"
  std::string where(std::size_t i) const {
    return fmt::format("{}, sample {} ({})", source_.string(), i, reader_->key(i));
  }

 private:
  fs::path source_;
  std::unique_ptr<Reader> reader_;
  bool of_files_;
  std::vector<std::byte> buffer_;
};

}  // namespace

TarTokens::TarTokens(TokenType from) : from_(from) {
  if (from == TokenType::none || from == TokenType::f32 || from == TokenType::f64) return;
  bytes_ = bytes_of(from) <= 2 ? 2 : 4;
  as_it_is_ = from == TokenType::u16 || from == TokenType::u32;
}

std::span<const std::byte> TarTokens::convert(std::span<const std::byte> payload, const std::string& where) {
  const auto from_bytes = static_cast<std::size_t>(bytes_of(from_));
  if (as_it_is_ || from_bytes == 0) return payload;
  numbers_.resize(payload.size() / from_bytes);
  const auto max = static_cast<std::int64_t>(bytes_ == 2 ? std::numeric_limits<std::uint16_t>::max()
                                                         : std::numeric_limits<std::uint32_t>::max());
  const auto refuse = [&](std::size_t n, auto number) {
    fail("{}: token {} is {}, but tokens of tar shards must be between 0 and {}", where, n, number, max);
  };
  if (from_ == TokenType::u64) {  // may exceed the signed numbers that widen() makes
    for (std::size_t n = 0; n < numbers_.size(); ++n) {
      std::uint64_t number = 0;
      std::memcpy(&number, payload.data() + n * sizeof(number), sizeof(number));
      if (number > static_cast<std::uint64_t>(max)) refuse(n, number);
    }
  }
  widen(from_, payload, numbers_);
  const auto width = static_cast<std::size_t>(bytes_);
  converted_.resize(numbers_.size() * width);
  for (std::size_t n = 0; n < numbers_.size(); ++n) {
    if (numbers_[n] < 0 || numbers_[n] > max) refuse(n, numbers_[n]);
    std::memcpy(converted_.data() + n * width, &numbers_[n], width);
  }
  return converted_;
}

namespace {

void done(const ConvertOptions& options, ConvertResult& result) {
  ++result.samples;
  if (options.progress) options.progress(result.samples);
}

void stop_if_asked(const ConvertOptions& options) {
  if (options.stop != nullptr && options.stop->load()) throw Stopped("stopped: nothing is kept");
}

/// The names of samples and parts in tar shards.
class MemberNames {
 public:
  MemberNames(const SampleSource& source, const ConvertOptions& options, bool tokens)
      : source_(source), kind_(options.kind.empty() ? (tokens ? "tok" : "bin") : options.kind) {
    if (!unsafe_kind(kind_).empty()) fail_usage("--kind '{}' cannot be the ending of a file name", kind_);
    refuse_equal_keys();
  }

  std::string key(std::size_t i) const {
    const std::string_view key = source_.reader().key(i);
    return source_.of_files() ? std::string(key) : member_key(key);
  }
  /// Adds a kind where there is none, since WebDataset ignores files without an ending.
  std::string kind(const Part& part) const {
    return part.kind.empty() && !source_.of_files() ? kind_ : part.kind;
  }

 private:
  void refuse_equal_keys() const {
    std::vector<std::pair<std::uint64_t, std::size_t>> hashes(source_.size());
    for (std::size_t i = 0; i < hashes.size(); ++i)
      hashes[i] = {xxh3_64(std::as_bytes(std::span(source_.reader().key(i)))), i};
    std::sort(hashes.begin(), hashes.end());
    for (std::size_t n = 1; n < hashes.size(); ++n) {
      if (hashes[n].first == hashes[n - 1].first)
        fail("{} and sample {} have the same key", source_.where(hashes[n - 1].second), hashes[n].second);
    }
  }

  const SampleSource& source_;
  std::string kind_;
};

void write_in_blocks(Packer& packer, std::span<const std::byte> payload) {
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  for (; payload.size() > kBlock; payload = payload.subspan(kBlock)) packer.write(payload.first(kBlock));
  packer.write(payload);
}

void add_sample(std::size_t i, SampleSource& source, const MemberNames& names, TarTokens& tokens,
                Packer& packer, ConvertResult& result) {
  const std::vector<Part> parts = source.reader().parts(i);
  if (tokens.bytes() != 0 && parts.size() > 1)
    fail("{} has {} parts, but a sample of tokens must have one", source.where(i), parts.size());
  std::uint64_t bytes = 0;
  for (const Part& part : parts) bytes += member_bytes(part.bytes);
  std::span<const std::byte> only;
  if (parts.size() == 1) {  // converting the tokens may change the length
    only = tokens.convert(source.part(i, 0, parts[0]), source.where(i));
    bytes = member_bytes(only.size());
  }
  packer.begin_sample(names.key(i), bytes);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::span<const std::byte> payload = parts.size() == 1 ? only : source.part(i, p, parts[p]);
    packer.begin_part(names.kind(parts[p]), payload.size());
    write_in_blocks(packer, payload);
    packer.end_part(xxh3_64(payload));
    result.payload_bytes += payload.size();
  }
}

/// Reads the written shards and compares them with the digests in their index, which were made from the
/// source.
void check_tar(const fs::path& pack, const Journal& journal, const SampleSource& source,
               const ConvertOptions& options) {
  const std::unique_ptr<Reader> written = open(pack);
  if (written->size() != source.size() ||
      (source.of_files() && written->fingerprint() != source.reader().fingerprint()))
    fail("{}: the written copy differs from it: convert again", options.source.string());
  for (std::size_t s = 0; s < journal.shards(); ++s) {
    stop_if_asked(options);
    open(pack / shard_file_name(s))->verify();
  }
}

/// A new folder inside the hidden one, for a call that continues nothing. Throws Error if an interrupted create() has left
/// complete shards there, which it could continue.
fs::path working_folder(Unfinished& unfinished, const fs::path& out, FileSystem& system) {
  if (system.status(unfinished.folder() / kJournal)) {
    unfinished.keep();
    fail("{}: an interrupted create has packed a part of it: run that command again, or remove {}",
         out.string(), unfinished.folder().string());
  }
  fs::path work = unfinished.folder() / "work";
  system.remove_all(work);
  (void)system.make_folder(work, 0755);
  return work;
}

ConvertResult to_tar(const ConvertOptions& options) {
  FileSystem& system = options.system != nullptr ? *options.system : FileSystem::real();
  SampleSource source(options.source, options.open);
  TarTokens tokens(source.reader().token_type());
  const MemberNames names(source, options, tokens.bytes() != 0);
  const fs::path out = new_folder(options.out, system);
  Unfinished unfinished(unfinished_folder(out), out, system);
  const fs::path work = working_folder(unfinished, out, system);
  const fs::path pack = work / "pack";
  (void)system.make_folder(pack, 0755);
  Journal journal(work / kJournal, "convert", system);
  Packer packer({.folder = pack, .shard_bytes = options.shard_bytes, .token_bytes = tokens.bytes()}, journal,
                system);
  ConvertResult result;
  for (std::size_t i = 0; i < source.size(); ++i) {
    stop_if_asked(options);
    add_sample(i, source, names, tokens, packer, result);
    done(options, result);
  }
  packer.finish();
  write_index(pack / kIndexName, tokens.bytes(), journal, system);
  check_tar(pack, journal, source, options);
  publish_pack(pack, out, system);
  result.files = journal.shards();
  return result;
}

/// Reads the written files and compares each sample with the digest that was taken from the source.
void check_megatron(const fs::path& prefix, const SampleSource& source, TokenType written_type,
                    const std::vector<std::uint64_t>& digests, const ConvertOptions& options) {
  const std::unique_ptr<Reader> written = open(prefix.string() + ".idx");
  const auto refuse = [&](std::size_t i) {
    fail("{}: the copy in {} differs from it: convert again", source.where(i), prefix.string());
  };
  if (written->size() != source.size()) refuse(std::min(written->size(), source.size()) - 1);
  std::vector<std::byte> payload;
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < written->size(); ++i) {
    stop_if_asked(options);
    payload.resize(written->bytes(i));
    written->read(i, payload);
    numbers.resize(written->tokens(i));
    widen(written_type, payload, numbers);
    if (xxh3_64(std::as_bytes(std::span(numbers))) != digests[i]) refuse(i);
  }
}

bool is_megatron(const fs::path& source) {
  try {
    return contents_of(source).format == Format::megatron;
  } catch (const Error&) {  // "FILE.h5:/PATH" is not a file
    return false;
  }
}

ConvertResult to_megatron(const ConvertOptions& options) {
  SampleSource source(options.source, options.open);
  const TokenType type = source.reader().token_type();
  if (type == TokenType::none) {
    fail("{}: its samples are not marked as tokens, and Megatron-Core's format holds only tokens: {}",
         options.source.string(), advice_for_tokens(source.reader()));
  }
  if (is_megatron(options.source))
    fail("{} already has this format: copy its two files", options.source.string());
  MegatronWriter writer(options.out, type);
  ConvertResult result;
  std::vector<std::uint64_t> digests(source.size());  // of the tokens as 64-bit numbers
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < source.size(); ++i) {
    stop_if_asked(options);
    const std::vector<Part> parts = source.reader().parts(i);
    if (parts.size() > 1)
      fail("{} has {} parts, but a sample of tokens must have one", source.where(i), parts.size());
    const std::span<const std::byte> payload = source.part(i, 0, parts[0]);
    writer.add_sequence(payload);
    writer.end_document();
    numbers.resize(payload.size() / static_cast<unsigned>(bytes_of(type)));
    widen(type, payload, numbers);
    digests[i] = xxh3_64(std::as_bytes(std::span(numbers)));
    result.payload_bytes += payload.size();
    done(options, result);
  }
  writer.finish();
  try {
    check_megatron(options.out, source, writer.written_type(), digests, options);
  } catch (...) {
    for (const char* end : {".idx", ".bin"}) FileSystem::real().remove_all(options.out.string() + end);
    throw;
  }
  result.files = 1;
  return result;
}

bool plain(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
         byte == '-' || byte == '_' || byte == '/';
}

}  // namespace

std::string member_key(std::string_view key) {
  const std::string name = std::string(key) + ".x";
  if (unsafe_member_name(name).empty() && key.find('%') == std::string_view::npos &&
      split_member_name(name).key == key)
    return std::string(key);
  if (key.empty()) return "%";
  std::string escaped;
  for (std::size_t n = 0; n < key.size(); ++n) {
    const char byte = key[n];
    const bool lone_slash = byte == '/' && (n == 0 || n + 1 == key.size() || key[n - 1] == '/');
    if (plain(byte) && !lone_slash) {
      escaped += byte;
    } else {
      escaped += fmt::format("%{:02X}", static_cast<unsigned char>(byte));
    }
  }
  return escaped;
}

ConvertResult convert(const ConvertOptions& options) {
  return options.to == ConvertOptions::To::tar ? to_tar(options) : to_megatron(options);
}

}  // namespace lockstep::pack
