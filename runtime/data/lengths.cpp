#include "runtime/data/lengths.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string_view>

#include "common/error.h"
#include "common/files.h"
#include "common/units.h"
#include "runtime/data/plan/order/random.h"
#include "runtime/data/plan/planner.h"
#include "staging/pack/reader.h"

namespace lockstep::data {
namespace {

// All are held in memory.
constexpr std::size_t kMaxFromHistogram = std::size_t{1} << 32U;
constexpr std::uint64_t kLongest = std::numeric_limits<std::uint32_t>::max();

std::string_view trim(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// As some programs write them all.
std::string_view without_quotes(std::string_view field) {
  const bool quoted = field.size() >= 2 && field.front() == '"' && field.back() == '"';
  return quoted ? field.substr(1, field.size() - 2) : field;
}

constexpr std::size_t kShown =
    40;  // bytes of a field in a message: a file that is no list may have anything in it

std::string printable_fields(const std::vector<std::string_view>& fields) {
  constexpr std::size_t most = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, fields.size()); ++i) {
    text += (i == 0 ? "" : ", ") + printable(fields[i], kShown);
  }
  return fields.size() > most ? text + ", ..." : text;
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

// Reads the named columns of each row as whole numbers and hands them, with the line's number, to `row`.
void for_each_row(const std::filesystem::path& file, const std::vector<std::string>& columns,
                  const std::function<void(std::size_t line, std::span<const std::int64_t> values)>& row) {
  const std::string content = read_text_file(file);
  std::vector<std::size_t> places;
  std::vector<std::int64_t> values(columns.size());
  std::size_t width = 0;
  std::size_t number = 0;
  std::size_t header = 0;  // the number of its line
  std::size_t rows = 0;
  std::size_t blank = 0;  // the first blank line after the header; 0: none
  std::string_view rest = content;
  if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);  // of some editors and spreadsheets
  while (!rest.empty()) {
    ++number;
    const auto end = rest.find('\n');
    const std::string_view line = trim(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.empty() && header > 0 && blank == 0) blank = number;
    if (line.empty() || line.front() == '#') continue;
    if (blank > 0) {
      fail(
          "{}:{}: a blank line before the last row; remove it, or give the sample that it stands for a "
          "length",
          file.string(), blank);
    }
    const std::vector<std::string_view> fields = split(line);
    if (header == 0) {
      header = number;
      width = fields.size();
      for (const std::string& column : columns) {
        const auto found = std::find(fields.begin(), fields.end(), column);
        if (found == fields.end()) {
          fail_usage("{}:{}: there is no column '{}'; there are: {}", file.string(), number, column,
                     printable_fields(fields));
        }
        if (std::find(found + 1, fields.end(), column) != fields.end()) {
          fail("{}:{}: two columns are named '{}'; rename one of them", file.string(), number, column);
        }
        places.push_back(static_cast<std::size_t>(found - fields.begin()));
      }
      continue;
    }
    if (fields.size() != width) {
      fail("{}:{}: {} fields where the header has {}", file.string(), number, fields.size(), width);
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::string_view field = fields[places[i]];
      const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), values[i]);
      if (error != std::errc() || stop != field.data() + field.size()) {
        fail("{}:{}: column '{}' is not a whole number: '{}'", file.string(), number, columns[i],
             printable(field, kShown));
      }
    }
    row(number, values);
    ++rows;
  }
  if (header == 0) fail("{}: there is no header line naming the columns", file.string());
  if (rows == 0) fail("{}:{}: no row follows the header", file.string(), header);
}

std::uint32_t checked_length(const std::filesystem::path& file, std::size_t line, std::int64_t length) {
  if (length < 1 || static_cast<std::uint64_t>(length) > kLongest) {
    fail("{}:{}: length {} is not in 1..{}", file.string(), line, length, kLongest);
  }
  return static_cast<std::uint32_t>(length);
}

struct Bin {
  std::uint32_t length;
  std::uint64_t count;
  std::uint64_t samples;    // of those asked for
  std::uint64_t remainder;  // of the division that gave them
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

Lengths lengths_from_histogram(const std::filesystem::path& file, std::size_t samples) {
  if (samples > kMaxFromHistogram) {
    fail_usage("{} samples are more than the {} that a histogram can be spread over", samples,
               kMaxFromHistogram);
  }
  __extension__ using Wide = unsigned __int128;
  std::vector<Bin> bins;
  std::uint64_t total = 0;
  for_each_row(file, {"length", "count"}, [&](std::size_t line, std::span<const std::int64_t> values) {
    if (values[1] < 0) fail("{}:{}: count {} is negative", file.string(), line, values[1]);
    const auto count = static_cast<std::uint64_t>(values[1]);
    bins.push_back({checked_length(file, line, values[0]), count, 0, 0});
    if (count > ~total) fail("{}:{}: the counts add up to more than 2^64", file.string(), line);
    total += count;
  });
  if (total == 0) fail("{}: all counts are 0", file.string());
  // Largest remainders: each bin its share rounded down, and what is left to those that lost most.
  std::uint64_t given = 0;
  for (Bin& bin : bins) {
    const Wide share = static_cast<Wide>(bin.count) * samples;
    bin.samples = static_cast<std::uint64_t>(share / total);
    bin.remainder = static_cast<std::uint64_t>(share % total);
    given += bin.samples;
  }
  std::vector<Bin*> by_remainder;
  by_remainder.reserve(bins.size());
  for (Bin& bin : bins) by_remainder.push_back(&bin);
  std::stable_sort(by_remainder.begin(), by_remainder.end(),
                   [](const Bin* x, const Bin* y) { return x->remainder > y->remainder; });
  for (std::size_t i = 0; given < samples; ++i, ++given) ++by_remainder[i]->samples;

  Lengths lengths;
  lengths.tokens.reserve(samples);
  for (const Bin& bin : bins) lengths.tokens.insert(lengths.tokens.end(), bin.samples, bin.length);
  Random(0, 0, 0).shuffle(std::span(lengths.tokens));
  lengths.fingerprint = fingerprint_of(lengths.tokens);
  return lengths;
}

Lengths lengths_from_pack(const pack::Reader& reader, const std::string& name) {
  if (reader.token_bytes() == 0) fail("{}: the pack holds no tokens; pack it with a token size", name);
  Lengths lengths;
  lengths.tokens.reserve(reader.size());
  for (std::size_t i = 0; i < reader.size(); ++i) {
    const std::uint64_t tokens = reader.tokens(i);
    if (tokens < 1 || tokens > kLongest) {
      fail("{}: sample '{}' has {} tokens, not 1..{}", name, reader.key(i), tokens, kLongest);
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
