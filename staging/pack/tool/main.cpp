// lockstep-pack: makes packs and reads them. Here are the verbs that read: ls, cat, verify, stats.

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "common/units.h"
#include "staging/pack/format.h"
#include "staging/pack/index.h"
#include "staging/pack/member_name.h"
#include "staging/pack/reader.h"
#include "staging/pack/tool/verbs.h"

namespace lockstep::pack {
namespace {

void run_ls(const Tool& tool, const std::string& source, const OpenOptions& options) {
  const std::unique_ptr<Reader> reader = open(source, options);
  for (std::size_t i = 0; i < reader->size(); ++i) {
    for (const Part& part : reader->parts(i)) {
      const std::string name = join_member_name(reader->key(i), part.kind);
      if (tool.json()) {
        nlohmann::json line = {{"sample", i},         {"key", reader->key(i)}, {"kind", part.kind},
                               {"bytes", part.bytes}, {"shard", part.shard},   {"offset", part.offset}};
        if (part.xxh3 != 0) line["xxh3"] = fmt::format("{:016x}", part.xxh3);
        if (reader->token_bytes() != 0) line["tokens"] = reader->tokens(i);
        Tool::print(line);
      } else {
        fmt::print("{:>8} {:>12} {}:{} {}\n", i, part.bytes, printable(part.shard), part.offset,
                   printable(name));
      }
    }
  }
}

struct CatArguments {
  std::string source;
  std::string key;
  std::optional<std::size_t> number;
  std::optional<std::string> kind;
};

std::size_t find_sample(const Reader& reader, const CatArguments& arguments) {
  if (arguments.number) return *arguments.number;
  if (arguments.key.empty()) fail_usage("name the sample by its key or with --sample");
  const std::string_view key = split_member_name(arguments.key).key;  // a member's complete name works too
  for (std::size_t i = 0; i < reader.size(); ++i) {
    if (reader.key(i) == arguments.key || reader.key(i) == key) return i;
  }
  fail("{}: there is no sample '{}': see lockstep-pack ls", arguments.source, arguments.key);
}

std::size_t find_part(const Reader& reader, std::size_t sample, const CatArguments& arguments) {
  const std::vector<Part> parts = reader.parts(sample);
  std::string_view kind =
      arguments.kind ? std::string_view(*arguments.kind) : split_member_name(arguments.key).kind;
  if (!arguments.kind && (kind.empty() || reader.key(sample) == arguments.key)) return 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (parts[p].kind == kind) return p;
  }
  fail("{}: sample {} ({}) has no part '{}'", arguments.source, sample, reader.key(sample), kind);
}

template <typename Number>
nlohmann::json fractions(const std::vector<std::byte>& payload) {
  std::vector<Number> numbers(payload.size() / sizeof(Number));
  std::memcpy(numbers.data(), payload.data(), numbers.size() * sizeof(Number));
  return numbers;
}

/// The numbers of a sample of tokens.
nlohmann::json token_list(const std::vector<std::byte>& payload, TokenType type) {
  if (type == TokenType::f32) return fractions<float>(payload);
  if (type == TokenType::f64) return fractions<double>(payload);
  const auto bytes = static_cast<std::size_t>(std::max(1, bytes_of(type)));
  std::vector<std::int64_t> tokens(payload.size() / bytes);
  widen(type, payload, tokens);
  return tokens;
}

void run_cat(const Tool& tool, const CatArguments& arguments, const OpenOptions& options) {
  const std::unique_ptr<Reader> reader = open(arguments.source, options);
  const std::size_t sample = find_sample(*reader, arguments);
  const std::size_t p = find_part(*reader, sample, arguments);
  const Part part = reader->parts(sample)[p];
  std::vector<std::byte> payload(part.bytes);
  reader->read_part(sample, p, payload);
  const std::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
  if (!tool.json()) {
    write_all(STDOUT_FILENO, text, "standard output");
    return;
  }
  nlohmann::json line = {
      {"sample", sample}, {"key", reader->key(sample)}, {"kind", part.kind}, {"bytes", part.bytes}};
  if (reader->token_bytes() != 0) {
    try {
      line["tokens"] = token_list(payload, reader->token_type());
    } catch (const Error& error) {
      fail("{}, sample {} ({}): {}", arguments.source, sample, reader->key(sample), error.what());
    }
  } else {
    line["text"] = text;
  }
  Tool::print(line);
}

/// The size of all files of a source; 0 if it is not known without opening them.
std::uint64_t bytes_of_files(const std::string& source) {
  std::uint64_t bytes = 0;
  try {
    const Contents contents = contents_of(source);
    for (const std::string& file : contents.files) {
      if (file != kIndexName) bytes += std::filesystem::file_size(contents.folder / file);
    }
  } catch (const std::exception&) {
    return 0;
  }
  return bytes;
}

void verify_one(const Tool& tool, const std::string& source, const OpenOptions& options) {
  const std::uint64_t begin = monotonic_ns();
  const std::unique_ptr<Reader> reader = open(source, options);
  {
    Progress progress("verifying:", bytes_of_files(source));
    std::uint64_t read = 0;
    reader->verify([&](std::uint64_t bytes) { progress.update(read += bytes); });
  }
  const double seconds = seconds_between(begin, monotonic_ns());
  if (tool.json()) {
    Tool::print({{"source", source},
                 {"ok", true},
                 {"samples", reader->size()},
                 {"fingerprint", reader->fingerprint()},
                 {"notes", reader->notes()},
                 {"seconds", seconds}});
  } else {
    fmt::print("{}: {} samples, all match the index ({}){}\n", printable(source), reader->size(),
               format_seconds(seconds), joined_notes(reader->notes()));
  }
}

/// Verifies all sources, even after one that is damaged.
void run_verify(const Tool& tool, const std::vector<std::string>& sources, const OpenOptions& options) {
  std::size_t damaged = 0;
  for (const std::string& source : sources) {
    try {
      verify_one(tool, source, options);
    } catch (const Error& error) {
      if (tool.json()) Tool::print({{"source", source}, {"ok", false}, {"error", error.what()}});
      if (sources.size() == 1) throw;
      tool.say(error.what());
      ++damaged;
    }
  }
  if (damaged > 0) fail("{} of {} sources are damaged; they are named above", damaged, sources.size());
}

void run_stats(const Tool& tool, const std::string& source, const OpenOptions& options) {
  const std::unique_ptr<Reader> reader = open(source, options);
  const int unit = std::max(1, reader->token_bytes());
  std::vector<std::uint64_t> lengths(reader->size());
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = reader->bytes(i) / static_cast<unsigned>(unit);
    total += lengths[i];
  }
  std::sort(lengths.begin(), lengths.end());
  const auto quantile = [&](double q) {
    return lengths[static_cast<std::size_t>(q * static_cast<double>(lengths.size() - 1))];
  };
  const char* name = reader->token_bytes() != 0 ? "tokens" : "bytes";
  if (tool.json()) {
    Tool::print({{"source", source},
                 {"samples", lengths.size()},
                 {"unit", name},
                 {"total", total},
                 {"min", lengths.front()},
                 {"p50", quantile(0.5)},
                 {"p90", quantile(0.9)},
                 {"p99", quantile(0.99)},
                 {"max", lengths.back()},
                 {"fingerprint", reader->fingerprint()},
                 {"notes", reader->notes()}});
    return;
  }
  fmt::print("{}: {} samples, {} {}{}\nper sample: min {}, median {}, p90 {}, p99 {}, max {}\n", source,
             lengths.size(), total, name, joined_notes(reader->notes()), lengths.front(), quantile(0.5),
             quantile(0.9), quantile(0.99), lengths.back());
}

void add_look_verbs(Tool& tool) {
  const auto source = std::make_shared<std::string>();
  const auto options = std::make_shared<OpenOptions>();
  const char* kSource = "Packed data: a folder, a shard or a file";
  CLI::App& ls =
      tool.verb("ls", "List the samples", [&tool, source, options] { run_ls(tool, *source, *options); });
  ls.add_option("pack", *source, kSource)->required()->check(Tool::named());

  const auto chosen = std::make_shared<CatArguments>();
  CLI::App& cat = tool.verb("cat", "Write one sample to standard output",
                            [&tool, chosen, options] { run_cat(tool, *chosen, *options); });
  cat.add_option("pack", chosen->source, kSource)->required()->check(Tool::named());
  cat.add_option("key", chosen->key, "The sample's key, or the complete name of a packed file");
  cat.add_option("--sample", chosen->number, "The sample's number instead of its key")
      ->check(CLI::NonNegativeNumber);
  cat.add_option("--kind", chosen->kind, "The part of the sample, such as \"json\"; default: the first part");

  const auto sources = std::make_shared<std::vector<std::string>>();
  CLI::App& verify = tool.verb("verify", "Read everything and compare it with the index",
                               [&tool, sources, options] { run_verify(tool, *sources, *options); });
  verify.add_option("pack", *sources, "Packed data: folders, shards or files")
      ->required()
      ->check(Tool::named());

  CLI::App& stats = tool.verb("stats", "Show how long the samples are",
                              [&tool, source, options] { run_stats(tool, *source, *options); });
  stats.add_option("pack", *source, kSource)->required()->check(Tool::named());
  for (CLI::App* verb : {&ls, &cat, &verify, &stats}) add_leave_out(*verb, *options);
}

}  // namespace
}  // namespace lockstep::pack

int main(int argc, char** argv) {
  lockstep::Tool tool("lockstep-pack",
                      "Pack many small files into a few tar shards with an index, and read packs");
  lockstep::pack::add_write_verbs(tool);
  lockstep::pack::add_look_verbs(tool);
  return tool.run(argc, argv);
}
