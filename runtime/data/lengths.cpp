#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "runtime/data/plan/order/random.h"
#include "runtime/data/plan/planner.h"
#include "staging/pack/file_kind.h"
#include "staging/pack/reader.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kMaxFromHistogram = std::size_t{1} << 32U;  // they are all in memory
constexpr std::uint64_t kMaxLength = std::numeric_limits<std::uint32_t>::max();

std::string_view trim(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// Maximum bytes of a field in a message: a file that is not a list can contain anything.
constexpr std::size_t kMaxFieldShown = 40;

std::string printable_fields(const std::vector<std::string>& fields) {
  constexpr std::size_t max_fields = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(max_fields, fields.size()); ++i) {
    text += (i == 0 ? "" : ", ") + printable(fields[i], kMaxFieldShown);
  }
  return fields.size() > max_fields ? text + ", ..." : text;
}

// The records of a CSV file (RFC 4180): fields in quotes may contain commas, line breaks and doubled quotes.
class CsvReader {
 public:
  CsvReader(const std::filesystem::path& file, std::string_view rest) : file_(file), rest_(rest) {}

  // The line on which the last record begins.
  std::size_t line() const { return line_; }

  // Goes to the next record; false at the end. A blank line is a record without fields, and so is a comment if `comments`.
  bool next(std::vector<std::string>& fields, bool comments) {
    fields.clear();
    if (rest_.empty()) return false;
    line_ = next_line_;
    const std::string_view first = trim(rest_.substr(0, rest_.find_first_of("\r\n")));
    blank_ = first.empty();
    if (blank_ || (comments && first.front() == '#')) {
      take_line_end(rest_.find_first_of("\r\n"));
      return true;
    }
    while (take_field(fields)) {
    }
    return true;
  }

  bool blank() const { return blank_; }

 private:
  // CR LF, LF, or CR of old Macs.
  void take_line_end(std::size_t at) {
    rest_.remove_prefix(std::min(at, rest_.size()));
    if (rest_.starts_with("\r\n")) rest_.remove_prefix(1);
    if (!rest_.empty()) rest_.remove_prefix(1);
    ++next_line_;
  }

  // False after the last field of a record.
  bool take_field(std::vector<std::string>& fields) {
    const std::size_t begin = std::min(rest_.find_first_not_of(" \t"), rest_.size());
    if (begin < rest_.size() && rest_[begin] == '"') {
      rest_.remove_prefix(begin + 1);
      fields.push_back(quoted());
    } else {
      const std::size_t end = std::min(rest_.find_first_of(",\r\n"), rest_.size());
      fields.emplace_back(trim(rest_.substr(0, end)));
      rest_.remove_prefix(end);
    }
    const std::size_t after = std::min(rest_.find_first_not_of(" \t"), rest_.size());
    if (after < rest_.size() && rest_[after] == ',') {
      rest_.remove_prefix(after + 1);
      return true;
    }
    if (after < rest_.size() && rest_[after] != '\r' && rest_[after] != '\n')
      fail("{}:{}: there is text after a quoted field: separate fields by commas", file_.string(), line_);
    take_line_end(after);
    return false;
  }

  std::string quoted() {
    std::string field;
    for (;;) {
      const std::size_t quote = rest_.find('"');
      if (quote == std::string_view::npos)
        fail("{}:{}: a quote in this row is not closed", file_.string(), line_);
      const std::string_view piece = rest_.substr(0, quote);
      next_line_ += static_cast<std::size_t>(std::count(piece.begin(), piece.end(), '\n'));
      field += piece;
      rest_.remove_prefix(quote + 1);
      if (!rest_.starts_with('"')) return field;
      field += '"';
      rest_.remove_prefix(1);
    }
  }

  const std::filesystem::path& file_;
  std::string_view rest_;
  std::size_t line_ = 0;
  std::size_t next_line_ = 1;
  bool blank_ = false;
};

// A whole number; also as pandas writes it in a column with gaps: 512.0.
std::optional<std::int64_t> whole_number(std::string_view field) {
  field = trim(field);
  const std::size_t point = field.find('.');
  if (point != std::string_view::npos && point > 0 &&
      field.find_first_not_of('0', point + 1) == std::string_view::npos)
    field = field.substr(0, point);
  return to_number<std::int64_t>(field);
}

// Reads the named columns of each row as whole numbers and passes them to `row` with the line number.
void for_each_row(const std::filesystem::path& file, const std::vector<std::string>& columns,
                  const std::function<void(std::size_t line, std::span<const std::int64_t> values)>& row) {
  const std::string content = read_text_file(file);
  std::vector<std::size_t> places;
  std::vector<std::int64_t> values(columns.size());
  std::size_t width = 0;
  std::size_t header = 0;  // its line number; 0: not found yet
  std::size_t rows = 0;
  std::size_t blank = 0;  // the first blank line after the header; 0: none
  std::string_view text = content;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  CsvReader csv(file, text);
  std::vector<std::string> fields;
  while (csv.next(fields, header == 0)) {
    const std::size_t number = csv.line();
    if (csv.blank() && header > 0 && blank == 0) blank = number;
    // After the header a text may begin with '#' too: only a row that lacks fields is a comment.
    if (fields.empty() || (fields.size() < width && fields.front().starts_with('#'))) continue;
    if (blank > 0) {
      fail("{}:{}: there is a blank line before the last row: remove it, or replace it by its sample's row",
           file.string(), blank);
    }
    if (header == 0) {
      header = number;
      width = fields.size();
      for (const std::string& column : columns) {
        const auto found = std::find(fields.begin(), fields.end(), column);
        if (found == fields.end()) {
          fail_usage("{}:{}: there is no column '{}'; the columns are: {}", file.string(), number, column,
                     printable_fields(fields));
        }
        if (std::find(found + 1, fields.end(), column) != fields.end()) {
          fail("{}:{}: two columns are named '{}': rename one of them", file.string(), number, column);
        }
        places.push_back(static_cast<std::size_t>(found - fields.begin()));
      }
      continue;
    }
    if (fields.size() != width) {
      fail("{}:{}: the row has {} fields, but the header has {}", file.string(), number, fields.size(),
           width);
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::string& field = fields[places[i]];
      const std::optional<std::int64_t> value = whole_number(field);
      if (!value) {
        fail("{}:{}: the value of column '{}' is not a whole number: '{}'", file.string(), number, columns[i],
             printable(field, kMaxFieldShown));
      }
      values[i] = *value;
    }
    row(number, values);
    ++rows;
  }
  if (header == 0) fail("{}: there is no header line with the names of the columns", file.string());
  if (rows == 0) fail("{}:{}: there is no row after the header", file.string(), header);
}

std::uint32_t checked_length(const std::filesystem::path& file, std::size_t line, std::int64_t length) {
  if (length < 1 || static_cast<std::uint64_t>(length) > kMaxLength) {
    fail("{}:{}: the length must be in 1..{}, not {}", file.string(), line, kMaxLength, length);
  }
  return static_cast<std::uint32_t>(length);
}

struct Bin {
  std::uint32_t length;
  std::uint64_t count;
  std::uint64_t samples;    // its share of the requested samples
  std::uint64_t remainder;  // of the division that computed the share
};

}  // namespace

Lengths lengths_from_csv(const std::filesystem::path& file, const std::string& column) {
  Lengths lengths;
  for_each_row(file, {column}, [&](std::size_t line, std::span<const std::int64_t> values) {
    lengths.tokens.push_back(checked_length(file, line, values[0]));
  });
  lengths.fingerprint = fingerprint_of(lengths.tokens);
  return lengths;
}

std::vector<std::uint32_t> numbers_from_u32(const std::filesystem::path& file) {
  const std::string content = read_text_file(file);
  if (content.size() % sizeof(std::uint32_t) != 0) {
    fail("{} has {} bytes, which are not 32-bit numbers", file.string(), content.size());
  }
  std::vector<std::uint32_t> numbers(content.size() / sizeof(std::uint32_t));
  std::memcpy(numbers.data(), content.data(), content.size());
  return numbers;
}

Lengths lengths_from_u32(const std::filesystem::path& file) {
  Lengths lengths{.tokens = numbers_from_u32(file), .fingerprint = {}};
  lengths.fingerprint = fingerprint_of(lengths.tokens);
  return lengths;
}

Lengths lengths_from_histogram(const std::filesystem::path& file, std::size_t samples) {
  if (samples > kMaxFromHistogram) {
    fail_usage("the number of samples of a histogram must be at most {}, not {}", kMaxFromHistogram, samples);
  }
  __extension__ using Wide = unsigned __int128;
  std::vector<Bin> bins;
  std::uint64_t total = 0;
  for_each_row(file, {"length", "count"}, [&](std::size_t line, std::span<const std::int64_t> values) {
    if (values[1] < 0)
      fail("{}:{}: the count must not be negative, but is {}", file.string(), line, values[1]);
    const auto count = static_cast<std::uint64_t>(values[1]);
    bins.push_back({checked_length(file, line, values[0]), count, 0, 0});
    if (count > ~total) fail("{}:{}: the counts add up to more than 2^64", file.string(), line);
    total += count;
  });
  if (total == 0) fail("{}: all counts are 0", file.string());
  // Largest remainder method: each bin gets its share rounded down, and the bins with the largest
  // remainders get the rest.
  std::uint64_t assigned = 0;
  for (Bin& bin : bins) {
    const Wide share = static_cast<Wide>(bin.count) * samples;
    bin.samples = static_cast<std::uint64_t>(share / total);
    bin.remainder = static_cast<std::uint64_t>(share % total);
    assigned += bin.samples;
  }
  std::vector<Bin*> by_remainder;
  by_remainder.reserve(bins.size());
  for (Bin& bin : bins) by_remainder.push_back(&bin);
  std::stable_sort(by_remainder.begin(), by_remainder.end(),
                   [](const Bin* x, const Bin* y) { return x->remainder > y->remainder; });
  for (std::size_t i = 0; assigned < samples; ++i, ++assigned) ++by_remainder[i]->samples;

  Lengths lengths;
  lengths.tokens.reserve(samples);
  for (const Bin& bin : bins) lengths.tokens.insert(lengths.tokens.end(), bin.samples, bin.length);
  Random(0, 0, 0).shuffle(std::span(lengths.tokens));
  lengths.fingerprint = fingerprint_of(lengths.tokens);
  return lengths;
}

Lengths lengths_from_pack(const pack::Reader& reader, const std::string& name) {
  if (reader.token_bytes() == 0) {
    fail("{}: its samples are not tokens: {}", name, pack::advice_for_tokens(reader));
  }
  if (const auto type = reader.token_type(); type == pack::TokenType::f32 || type == pack::TokenType::f64) {
    fail("{}: its tokens are floating-point numbers ({}), but tokens must be integers: write them as such",
         name, pack::name_of(type));
  }
  Lengths lengths;
  lengths.tokens.reserve(reader.size());
  for (std::size_t i = 0; i < reader.size(); ++i) {
    const std::uint64_t tokens = reader.tokens(i);
    if (tokens > kMaxLength) {
      fail("{}: sample '{}' has {} tokens, more than {}", name, reader.key(i), tokens, kMaxLength);
    }
    lengths.tokens.push_back(static_cast<std::uint32_t>(tokens));
  }
  if (count_empty(lengths.tokens) == lengths.tokens.size()) fail("{}: all its samples are empty", name);
  lengths.fingerprint = reader.fingerprint();
  return lengths;
}

std::size_t count_empty(std::span<const std::uint32_t> lengths) {
  return static_cast<std::size_t>(std::count(lengths.begin(), lengths.end(), 0U));
}

void Lengths::append(const Lengths& more) {
  tokens.insert(tokens.end(), more.tokens.begin(), more.tokens.end());
  fingerprint += (fingerprint.empty() ? "" : "+") + more.fingerprint;
}

Lengths lengths_from_packs(std::span<const std::filesystem::path> packs) {
  Lengths all;
  for (const std::filesystem::path& path : packs)
    all.append(lengths_from_pack(*pack::open(path), path.string()));
  return all;
}

}  // namespace lockstep::data
