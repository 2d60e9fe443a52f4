#include "staging/pack/tar_members.h"

#include <algorithm>
#include <array>

#include "common/error.h"
#include "common/leaf/text.h"
#include "staging/pack/compression.h"
#include "staging/pack/member_name.h"

namespace lockstep::pack {
namespace {

constexpr std::size_t kWindow = std::size_t{32} << 10;  // the headers of several small members

// Where a header holds its fields.
constexpr std::size_t kName = 0;
constexpr std::size_t kNameBytes = 100;
constexpr std::size_t kSize = 124;
constexpr std::size_t kSizeBytes = 12;
constexpr std::size_t kSum = 148;
constexpr std::size_t kSumBytes = 8;
constexpr std::size_t kType = 156;
constexpr std::size_t kMagic = 257;
constexpr std::size_t kPrefix = 345;
constexpr std::size_t kPrefixBytes = 155;
// Whether a block of 512 bytes with more of GNU's sparse map follows: in the header, and in such a block.
constexpr std::size_t kMapGoesOn = 482;
constexpr std::size_t kMapGoesOnInMap = 504;

bool is_zero(std::string_view bytes) {
  return bytes.find_first_not_of('\0') == std::string_view::npos;
}

std::string_view text_of(std::string_view header, std::size_t at, std::size_t bytes) {
  const std::string_view field = header.substr(at, bytes);
  return field.substr(0, field.find('\0'));
}

/// Octal digits between spaces and zeros; or GNU's form for large numbers, big-endian after a byte 0x80.
std::optional<std::uint64_t> number_of(std::string_view field) {
  std::uint64_t number = 0;
  if (static_cast<unsigned char>(field.front()) == 0x80) {
    for (const char byte : field.substr(1)) {
      if (number >> 55 != 0) return {};
      number = number << 8 | static_cast<unsigned char>(byte);
    }
    return number;
  }
  const std::size_t begin = std::min(field.find_first_not_of(' '), field.size());
  field = field.substr(begin, field.find_first_of(std::string_view(" \0", 2), begin) - begin);
  for (const char digit : field) {
    if (digit < '0' || digit > '7') return {};
    number = number << 3 | static_cast<unsigned>(digit - '0');
  }
  return number;
}

std::string_view why_not_plain(char type, bool sparse) {
  if (type == '1') return "is not a regular file, but a hard link: make the tar file with --hard-dereference";
  if (type == '2') return "is not a regular file, but a symbolic link: make the tar file with --dereference";
  if (sparse || type == 'S') return "is stored in pieces (sparse): make the tar file without --sparse";
  return type == '0' || type == '\0' || type == '7' ? "" : "is not a regular file";
}

/// Old writers summed signed bytes.
bool has_checksum(std::string_view header) {
  const std::optional<std::uint64_t> stored = number_of(header.substr(kSum, kSumBytes));
  std::int64_t as_unsigned = 0;
  std::int64_t as_signed = 0;
  for (std::size_t i = 0; i < kTarBlock; ++i) {
    const char byte = i >= kSum && i < kSum + kSumBytes ? ' ' : header[i];
    as_unsigned += static_cast<unsigned char>(byte);
    as_signed += static_cast<signed char>(byte);
  }
  const auto sum = static_cast<std::int64_t>(stored.value_or(~std::uint64_t{0}));
  return sum == as_unsigned || sum == as_signed;
}

}  // namespace

bool is_tar(std::string_view first_bytes) {
  return first_bytes.size() >= kTarBlock && !is_zero(first_bytes.substr(0, kTarBlock)) &&
         has_checksum(first_bytes.substr(0, kTarBlock));
}

bool is_tar_name(std::string_view name) {
  const std::string lower = lower_case(name);
  constexpr std::array kEnds = {".tar", ".tgz", ".taz", ".tbz", ".tbz2", ".tb2", ".txz", ".tlz", ".tzst"};
  return std::any_of(kEnds.begin(), kEnds.end(),
                     [&](const char* end) { return unpacked_name(lower).ends_with(end); });
}

bool TarMembers::next() {
  Extended extended;
  for (bool extends = false;; extends = true) {
    begin_ = next_;
    if (begin_ >= file_.size()) {
      if (extends) broken("the archive ends after an extended header");
      return false;  // without the zeros that end it
    }
    const std::string header(block());
    const std::string_view compressed = begin_ == 0 ? compression_of(header) : std::string_view();
    if (!compressed.empty() && (header.size() < kTarBlock || !has_checksum(header)))
      broken(fmt::format("it is compressed with {}: {}", compressed, how_to_unpack(compressed)));
    if (header.size() < kTarBlock) broken("the file was truncated within a header");
    if (is_zero(header)) return false;
    if (!has_checksum(header))
      broken(begin_ == 0 ? "no tar header" : "the checksum of a header does not match");
    const std::optional<std::uint64_t> size = number_of(header.substr(kSize, kSizeBytes));
    if (!size || *size > file_.size()) broken("the size of a member is damaged, or the file was truncated");
    next_ = begin_ + kTarBlock;
    switch (header[kType]) {
      case 'L':
        if (const std::string name = payload(*size); !extended.name) extended.name = name.c_str();
        break;
      case 'K':  // the target of a link
      case 'V':
        (void)payload(*size);
        break;
      case 'g':
        read_pax(payload(*size), global_);
        if (global_.size) broken("a global PAX header gives all members one size");
        break;
      case 'x':
      case 'X': {  // Solaris
        Extended own = global_;
        read_pax(payload(*size), own);
        extended.add(own);
        break;
      }
      default:
        extended.add(global_);
        if (extended.size.value_or(0) > file_.size()) broken("a member extends past the end of the file");
        if (!extended.size) extended.size = size;
        set_member(header, extended);
        return true;
    }
  }
}

void TarMembers::Extended::add(const Extended& later) {
  if (!name) name = later.name;
  if (!size) size = later.size;
  sparse = sparse || later.sparse;
}

/// The block at next_; fewer bytes at the end of the file. Valid until the next call.
std::string_view TarMembers::block() {
  if (next_ < window_begin_ || next_ + kTarBlock > window_begin_ + window_.size()) {
    window_ = file_.read_some(next_, kWindow);
    window_begin_ = next_;
  }
  return std::string_view(window_).substr(next_ - window_begin_, kTarBlock);
}

std::string TarMembers::payload(std::uint64_t size) {
  std::string bytes = file_.read_some(next_, size);
  if (bytes.size() < size) broken("the file was truncated within an extended header");
  next_ += to_tar_blocks(size);
  return bytes;
}

/// Records "LENGTH KEY=VALUE\n". Values may have any bytes, such as those of a Mac's extended attributes.
void TarMembers::read_pax(const std::string& records, Extended& extended) const {
  std::string_view rest = records;
  while (!rest.empty() && rest.front() != '\0') {
    const std::size_t space = std::min(rest.find(' '), rest.size());
    const auto length = to_number<std::size_t>(rest.substr(0, space));
    const std::size_t equals = rest.find('=', space);
    if (!length || *length > rest.size() || *length < 2 || equals >= *length || rest[*length - 1] != '\n')
      broken("a PAX header is damaged");
    const std::string_view key = rest.substr(space + 1, equals - space - 1);
    const std::string_view value = rest.substr(equals + 1, *length - equals - 2);
    rest.remove_prefix(*length);
    if (key.starts_with("GNU.sparse.")) extended.sparse = true;
    // The last record of a key counts; one without a value takes the earlier ones back.
    if (key == "path" || key == "GNU.sparse.name")
      extended.name = value.empty() ? std::nullopt : std::optional<std::string>(value);
    if (key == "size") {
      extended.size = to_number<std::uint64_t>(value);
      if (!extended.size && !value.empty()) broken("the size in a PAX header is not a number");
    }
  }
}

void TarMembers::set_member(std::string_view header, const Extended& extended) {
  const char type = header[kType];
  name_ = extended.name ? *extended.name : std::string(text_of(header, kName, kNameBytes));
  if (!extended.name && header.substr(kMagic, 6) == std::string_view("ustar\0", 6)) {
    const std::string_view prefix = text_of(header, kPrefix, kPrefixBytes);
    if (!prefix.empty()) name_ = std::string(prefix) + "/" + name_;
  }
  // A '\0' is of the time before POSIX; 'D' is a folder with a list of its files (GNU's incremental archives).
  folder_ = type == '5' || type == 'D' || (type == '\0' && name_.ends_with('/'));
  not_plain_ = folder_ ? "is not a regular file" : why_not_plain(type, extended.sparse);
  while (name_.starts_with("./") && name_.size() > 2) name_.erase(0, 2);
  size_ = *extended.size;
  for (bool more = type == 'S' && header[kMapGoesOn] != 0; more; next_ += kTarBlock) {
    const std::string_view map = block();
    more = map.size() == kTarBlock && map[kMapGoesOnInMap] != 0;
  }
  offset_ = next_;
  // Links, devices and folders have no payload, even if their header has a size.
  if (type == 'D' || (!folder_ && (type < '1' || type > '6'))) next_ += to_tar_blocks(size_);
  if (not_plain_.empty() && size_ > file_.size() - offset_)
    broken(fmt::format("member '{}' extends past the end of the file: it was truncated", name_));
}

std::uint64_t TarMembers::bytes_after_end() const {
  constexpr std::size_t kAtATime = std::size_t{1} << 20;
  for (std::uint64_t at = next_; at < file_.size(); at += kAtATime) {
    const std::string bytes = file_.read_some(at, kAtATime);
    const std::size_t found = bytes.find_first_not_of('\0');
    if (found != std::string::npos) return file_.size() - (at + found / kTarBlock * kTarBlock);
  }
  return 0;
}

std::string describe_bytes_after_end(std::string_view shard, std::uint64_t bytes) {
  return fmt::format(
      "{} bytes follow the end of {} and are not read, as by other tar programs: if tar files were concatenated, unpack them (tar -xif) and make one of them",
      bytes, printable(shard));
}

void TarMembers::broken(std::string_view reason) const {
  fail("{}: not a complete tar file: at offset {}: {}", file_.path().string(), begin_, reason);
}

}  // namespace lockstep::pack
