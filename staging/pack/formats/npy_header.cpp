#include "staging/pack/formats/npy_header.h"

#include <charconv>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "common/error.h"
#include "staging/pack/formats/data_file.h"

namespace lockstep::pack {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

/// Parses the Python dictionary in the header, in the form that NumPy writes.
class Dictionary {
 public:
  Dictionary(std::string_view text, const std::filesystem::path& name) : text_(text), name_(name) {}

  void read(NpyHeader& header) {
    expect('{');
    bool has_type = false;
    bool has_shape = false;
    while (!accept('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr") {
        read_type(header);
        has_type = true;
      } else if (key == "fortran_order") {
        fortran_ = truth();
      } else if (key == "shape") {
        read_shape(header);
        has_shape = true;
      } else {
        damaged("it has an unknown entry");
      }
      if (!accept(',') && peek() != '}') damaged("an entry does not end");
    }
    if (!has_type || !has_shape) damaged("'descr' or 'shape' is missing");
    const bool fortran_differs = fortran_ && header.shape.size() > 1;
    if (texts_) header.shape.push_back(std::exchange(header.item_bytes, 1));
    if (fortran_differs)
      fail("{}: its numbers are in Fortran order: write it with numpy.ascontiguousarray", name_.string());
  }

 private:
  [[noreturn]] void damaged(std::string_view what) const {
    fail("{}: damaged .npy header: {}", name_.string(), what);
  }

  char peek() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n')) text_.remove_prefix(1);
    return text_.empty() ? '\0' : text_.front();
  }
  bool accept(char c) {
    if (peek() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) damaged(fmt::format("'{}' is missing", c));
  }
  std::string_view quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') damaged("a name is missing");
    text_.remove_prefix(1);
    const std::size_t end = text_.find(quote);
    if (end == std::string_view::npos) damaged("a name does not end");
    const std::string_view name = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return name;
  }
  bool truth() {
    peek();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
      if (!text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      return value;
    }
    damaged("'fortran_order' is neither True nor False");
  }
  std::uint64_t number() {
    peek();
    std::uint64_t value = 0;
    const auto [stop, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc()) damaged("a number is missing");
    text_.remove_prefix(static_cast<std::size_t>(stop - text_.data()));
    return value;
  }

  void read_shape(NpyHeader& header) {
    constexpr std::size_t kMaxAxes = 64;
    header.shape.clear();
    expect('(');
    while (!accept(')')) {
      header.shape.push_back(number());
      if (header.shape.size() > kMaxAxes) damaged("its shape has more axes than NumPy allows");
      if (!accept(',') && peek() != ')') damaged("the shape does not end");
    }
  }

  void read_type(NpyHeader& header) {
    if (peek() == '[') fail("{}: it holds records: write each field as a separate array", name_.string());
    const std::string_view type = quoted();
    if (type.size() < 2) damaged("the type of its numbers has no size");
    if (type[1] == 'O') fail("{}: it holds Python objects: write numbers", name_.string());
    std::uint64_t count = 0;
    const char* begin = type.data() + 2;
    const auto [stop, error] = std::from_chars(begin, type.data() + type.size(), count);
    if (error != std::errc() || count > std::numeric_limits<std::uint32_t>::max())
      damaged("the type of its numbers has no size");
    header.item_bytes = type[1] == 'U' ? 4 * count : count;
    if (type[0] == '>' && header.item_bytes > 1)
      fail("{}: its numbers are big-endian: write it with astype(dtype.newbyteorder('<'))", name_.string());
    const bool integers = type[1] == 'u' || type[1] == 'i';
    header.type = integers ? integer_type(type[1] == 'i', count) : TokenType::none;
    if (integers && header.type == TokenType::none)
      damaged(fmt::format("the type '{}' does not exist", type));
    texts_ = type[1] == 'S' || type[1] == 'U' || type[1] == 'V';
  }

  std::string_view text_;
  const std::filesystem::path& name_;
  bool fortran_ = false;
  bool texts_ = false;
};

/// A product; throws Error if it overflows.
std::uint64_t times(std::uint64_t a, std::uint64_t b, const std::string& name) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) fail("{}: its shape is larger than any file", name);
  return product;
}

}  // namespace

std::uint64_t NpyHeader::data_bytes() const {
  std::uint64_t bytes = item_bytes;
  for (const std::uint64_t length : shape) bytes *= length;
  return bytes;
}

NpyHeader parse_npy_header(std::string_view front, const std::filesystem::path& name) {
  constexpr std::size_t kFixed = 8;
  if (front.size() < kFixed + 2 || !front.starts_with(kMagic)) fail("{}: not a .npy file", name.string());
  const auto version = static_cast<unsigned char>(front[6]);
  if (version < 1 || version > 3)
    fail("{}: version {} of .npy is not supported, only 1 to 3", name.string(), version);
  std::uint32_t length = 0;
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  if (front.size() < kFixed + length_bytes) fail("{}: the file ends within its header", name.string());
  std::memcpy(&length, front.data() + kFixed, length_bytes);
  const std::size_t begin = kFixed + length_bytes;
  if (length > front.size() - begin)
    fail("{}: the header of {} bytes is truncated, or longer than the supported 64 KiB", name.string(),
         length);
  NpyHeader header;
  header.data_offset = begin + length;
  Dictionary(front.substr(begin, length), name).read(header);
  std::uint64_t bytes = header.item_bytes;
  for (const std::uint64_t axis : header.shape) bytes = times(bytes, axis, name.string());
  if (bytes > std::numeric_limits<std::uint64_t>::max() / 2)
    fail("{}: its shape is larger than any file", name.string());
  return header;
}

Rows rows_of(const std::vector<std::uint64_t>& shape, std::uint64_t item_bytes, const std::string& name) {
  Rows rows{.rows = 1, .row_bytes = item_bytes};
  if (shape.size() > 1) rows.rows = shape.front();
  for (std::size_t axis = shape.size() > 1 ? 1 : 0; axis < shape.size(); ++axis)
    rows.row_bytes = times(rows.row_bytes, shape[axis], name);
  if (rows.rows == 0 || rows.row_bytes == 0) fail("{} holds no samples", name);
  return rows;
}

TokenType integer_type(bool is_signed, std::uint64_t bytes) {
  switch (bytes) {
    case 1:
      return is_signed ? TokenType::i8 : TokenType::u8;
    case 2:
      return is_signed ? TokenType::i16 : TokenType::u16;
    case 4:
      return is_signed ? TokenType::i32 : TokenType::u32;
    case 8:
      return is_signed ? TokenType::i64 : TokenType::u64;
    default:
      return TokenType::none;
  }
}

TokenType tokens_of(TokenType type, std::size_t axes) {
  const bool integers = type != TokenType::f32 && type != TokenType::f64;
  return integers && (axes == 1 || axes == 2) ? type : TokenType::none;
}

void check_npy(const std::filesystem::path& file) {
  const DataFile data(file);
  NpyHeader header;
  try {
    header = parse_npy_header(data.read_some(0, kNpyHeaderBytes), file);
  } catch (const Error& error) {
    // A file that this library does not support may be staged for a program that does.
    if (data.read_some(0, kMagic.size()) == kMagic && data.size() > 10) return;
    throw;
  }
  const std::uint64_t wanted = header.data_offset + header.data_bytes();
  if (data.size() != wanted)
    fail("{} does not match its header: {} bytes, {} expected", file.string(), data.size(), wanted);
}

}  // namespace lockstep::pack
