#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string_view>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "runtime/data/plan/order/random.h"
#include "runtime/data/plan/planner.h"
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

// Removes the quotes that some programs write around all fields.
std::string_view without_quotes(std::string_view field) {
  const bool quoted = field.size() >= 2 && field.front() == '"' && field.back() == '"';
  return quoted ? field.substr(1, field.size() - 2) : field;
}

// Maximum bytes of a field in a message: a file that is not a list can contain anything.
constexpr std::size_t kMaxFieldShown = 40;

std::string printable_fields(const std::vector<std::string_view>& fields) {
  constexpr std::size_t max_fields = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(max_fields, fields.size()); ++i) {
    text += (i == 0 ? "" : ", ") + printable(fields[i], kMaxFieldShown);
  }
  return fields.size() > max_fields ? text + ", ..." : text;
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const auto comma = line.find(',');
    fields.push_back(without_quotes(trim(line.substr(0, comma))));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

// Reads the named columns of each row as whole numbers and passes them to `row` with the line number.
void for_each_row(const std::filesystem::path& file, const std::vector<std::string>& columns,
                  const std::function<void(std::size_t line, std::span<const std::int64_t> values)>& row) {
  const std::string content = read_text_file(file);
  std::vector<std::size_t> places;
  std::vector<std::int64_t> values(columns.size());
  std::size_t width = 0;
  std::size_t number = 0;
  std::size_t header = 0;  // its line number; 0: not found yet
  std::size_t rows = 0;
  std::size_t blank = 0;  // the first blank line after the header; 0: none
  std::string_view rest = content;
  if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);  // byte order mark
  while (!rest.empty()) {
    ++number;
    const auto end = rest.find('\n');
    const std::string_view line = trim(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.empty() && header > 0 && blank == 0) blank = number;
    if (line.empty() || line.front() == '#') continue;
    if (blank > 0) {
      fail("{}:{}: there is a blank line before the last row: remove it, or replace it by its sample's row",
           file.string(), blank);
    }
    const std::vector<std::string_view> fields = split(line);
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
      const std::string_view field = fields[places[i]];
      const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), values[i]);
      if (error != std::errc() || stop != field.data() + field.size()) {
        fail("{}:{}: the value of column '{}' is not a whole number: '{}'", file.string(), number, columns[i],
             printable(field, kMaxFieldShown));
      }
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
    fail("{}: the pack holds no tokens: pack the files again with lockstep-pack create --token-bytes", name);
  }
  if (const auto type = reader.token_type(); type == pack::TokenType::f32 || type == pack::TokenType::f64) {
    fail("{}: its tokens are floating-point numbers ({}), but tokens must be integers: write them as such",
         name, pack::name_of(type));
  }
  Lengths lengths;
  lengths.tokens.reserve(reader.size());
  for (std::size_t i = 0; i < reader.size(); ++i) {
    const std::uint64_t tokens = reader.tokens(i);
    if (tokens < 1 || tokens > kMaxLength) {
      fail("{}: sample '{}' has {} tokens, but must have 1..{}", name, reader.key(i), tokens, kMaxLength);
    }
    lengths.tokens.push_back(static_cast<std::uint32_t>(tokens));
  }
  lengths.fingerprint = reader.fingerprint();
  return lengths;
}

Lengths lengths_from_packs(std::span<const std::filesystem::path> packs) {
  Lengths all;
  for (const std::filesystem::path& path : packs) {
    const std::unique_ptr<pack::Reader> reader = pack::open(path);
    Lengths lengths = lengths_from_pack(*reader, path.string());
    all.tokens.insert(all.tokens.end(), lengths.tokens.begin(), lengths.tokens.end());
    if (!all.fingerprint.empty()) all.fingerprint += '+';
    all.fingerprint += lengths.fingerprint;
  }
  return all;
}

}  // namespace lockstep::data
