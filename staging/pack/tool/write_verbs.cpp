// The verbs that write packed data: create, convert, index. SIGINT, SIGTERM and SIGHUP end the first two cleanly.

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "common/units.h"
#include "staging/pack/compression.h"
#include "staging/pack/file_kind.h"
#include "staging/pack/formats/data_file.h"
#include "staging/pack/index.h"
#include "staging/pack/locate.h"
#include "staging/pack/member_name.h"
#include "staging/pack/reader.h"
#include "staging/pack/tar_members.h"
#include "staging/pack/tool/until_stopped.h"
#include "staging/pack/tool/verbs.h"
#include "staging/pack/write/convert.h"
#include "staging/pack/write/create.h"
#include "staging/pack/write/file_list.h"
#include "staging/pack/write/index_tars.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

/// A folder of tar shards is packed already, also with indexes beside them. A pack of them would have a shard as each sample.
void refuse_tars(const CreateOptions& options, const std::vector<std::string>& filters) {
  const auto is_index = [](std::string_view file) {
    return file == kIndexName || file.ends_with(".idx") || file.ends_with(".json");
  };
  std::vector<std::string> tars = options.files;
  std::erase_if(tars, is_index);
  if (!filters.empty() || tars.empty() || !std::all_of(tars.begin(), tars.end(), is_tar_name)) return;
  fail("{} holds tar files: {}; to pack each of them as a sample, add --filter '*'", options.folder.string(),
       advice_for_folder(options.folder, tars));
}

/// "256M" in bytes.
std::uint64_t parse_shard_size(const std::string& text) {
  const std::uint64_t bytes = parse_bytes(text);
  if (bytes == 0) fail_usage("--shard-size must be at least 1 byte, not {}", text);
  return bytes;
}

/// The next call would pack `out` too.
void refuse_out_inside(const fs::path& folder, const fs::path& out) {
  const fs::path inside =
      fs::weakly_canonical(fs::absolute(out)).lexically_relative(fs::weakly_canonical(folder));
  if (!inside.empty() && *inside.begin() != "..")
    fail_usage("{} is inside the folder to pack, {}: name a folder outside it", out.string(),
               folder.string());
}

struct CreateArguments {
  std::string source, out;
  std::string shard_size = "256M";
  std::vector<std::string> filters;
  CreateOptions options;
};

void run_create(const Tool& tool, CreateArguments& arguments) {
  const std::uint64_t begin = monotonic_ns();
  CreateOptions& options = arguments.options;
  options.out = arguments.out;
  options.shard_bytes = parse_shard_size(arguments.shard_size);
  const bool listed = arguments.source == "-";
  if (!listed) refuse_out_inside(arguments.source, options.out);
  (void)new_folder(options.out);  // before a large folder is listed
  options.folder = listed ? "." : arguments.source;
  StrayFiles stray;
  options.files = listed ? files_listed(std::cin, arguments.filters)
                         : files_below(options.folder, arguments.filters, &stray);
  if (!listed) refuse_tars(options, arguments.filters);
  options.notice = [&tool](const std::string& line) { tool.say(line); };
  CreateResult result;
  run_until_stopped(tool, [&](const std::atomic<bool>& stop) {
    options.stop = &stop;
    Progress progress("packing files:", options.files.size(), Progress::Unit::things);
    options.progress = [&](std::size_t files, std::uint64_t) { progress.update(files); };
    result = create(options);
  });
  const std::unique_ptr<Reader> reader = open(options.out);
  std::vector<std::string> notes = reader->notes();
  if (stray.count > 0) notes.insert(notes.begin(), describe(stray) + " (--filter chooses files)");
  const double seconds = seconds_between(begin, monotonic_ns());
  if (tool.json()) {
    Tool::print({{"out", options.out.string()},
                 {"samples", result.samples},
                 {"parts", result.parts},
                 {"shards", result.shards},
                 {"payload_bytes", result.payload_bytes},
                 {"bytes", result.pack_bytes},
                 {"token_bytes", options.token_bytes},
                 {"continued_files", result.continued_files},
                 {"left_out", stray.count},
                 {"notes", notes},
                 {"fingerprint", reader->fingerprint()},
                 {"seconds", seconds}});
    return;
  }
  fmt::print("{}: packed {} sample{} ({}) in {} shard{} in {}{}\n", options.out.string(), result.samples,
             result.samples == 1 ? "" : "s", format_bytes(result.payload_bytes), result.shards,
             result.shards == 1 ? "" : "s", format_seconds(seconds), joined_notes(notes));
}

struct ConvertArguments {
  std::string source, out;
  std::string to = "tar";
  std::string shard_size = "256M";
  ConvertOptions options;
};

void run_convert(const Tool& tool, ConvertArguments& arguments) {
  const std::uint64_t begin = monotonic_ns();
  ConvertOptions& options = arguments.options;
  options.source = arguments.source;
  options.out = arguments.out;
  options.shard_bytes = parse_shard_size(arguments.shard_size);
  if (arguments.to == "megatron") options.to = ConvertOptions::To::megatron;
  ConvertResult result;
  std::vector<std::string> notes;
  run_until_stopped(tool, [&](const std::atomic<bool>& stop) {
    options.stop = &stop;
    const std::unique_ptr<Reader> source = open(options.source, options.open);
    notes = source->notes();
    Progress progress("converting samples:", source->size(), Progress::Unit::things);
    options.progress = [&](std::uint64_t samples) { progress.update(samples); };
    result = convert(options);
  });
  const double seconds = seconds_between(begin, monotonic_ns());
  if (tool.json()) {
    Tool::print({{"source", arguments.source},
                 {"out", arguments.out},
                 {"to", arguments.to},
                 {"samples", result.samples},
                 {"files", result.files},
                 {"payload_bytes", result.payload_bytes},
                 {"notes", notes},
                 {"seconds", seconds}});
    return;
  }
  fmt::print("{}: converted {} samples ({}) in {}{}\n", arguments.out, result.samples,
             format_bytes(result.payload_bytes), format_seconds(seconds), joined_notes(notes));
}

void add_create_verb(Tool& tool) {
  const auto arguments = std::make_shared<CreateArguments>();
  CLI::App& create = tool.verb("create", "Pack the files of a folder, or the files listed on standard input",
                               [&tool, arguments] { run_create(tool, *arguments); });
  create
      .add_option("source", arguments->source,
                  "Folder to pack, or - to read a list of relative paths from standard input")
      ->required()
      ->check(Tool::named());
  create
      .add_option("--shard-size", arguments->shard_size,
                  "Largest size of a shard; a larger sample gets its own shard")
      ->capture_default_str();
  create
      .add_option("--threads", arguments->options.threads,
                  "Threads that open and read files; 0: chosen automatically")
      ->check(CLI::Range(0, 256));
  create
      .add_option("--filter", arguments->filters,
                  "Pack only files whose path or name matches this pattern (may be repeated)")
      ->allow_extra_args(false);
  create.add_option("--out", arguments->out, "The pack: a new folder")->required()->check(Tool::named());
  create
      .add_option("--token-bytes", arguments->options.token_bytes,
                  "The files hold little-endian tokens of 2 or 4 bytes; 0: other data")
      ->check(CLI::IsMember({0, 2, 4}));
}

void add_convert_verb(Tool& tool) {
  const auto arguments = std::make_shared<ConvertArguments>();
  CLI::App& convert =
      tool.verb("convert", "Convert data of any readable format to tar shards or to Megatron-Core's format",
                [&tool, arguments] { run_convert(tool, *arguments); });
  convert.add_option("source", arguments->source, "The data: a folder or a file")
      ->required()
      ->check(Tool::named());
  convert
      .add_option("--out", arguments->out,
                  "A new folder; for megatron, the prefix of the .bin and .idx files")
      ->required()
      ->check(Tool::named());
  convert.add_option("--to", arguments->to, "The format to write: tar or megatron")
      ->check(CLI::IsMember({"tar", "megatron"}))
      ->capture_default_str();
  convert
      .add_option("--shard-size", arguments->shard_size,
                  "Largest size of a tar shard; a larger sample gets its own shard")
      ->capture_default_str();
  convert.add_option(
      "--kind", arguments->options.kind,
      "File name ending for samples of a source without file names (default: tok for tokens, else bin)");
  add_leave_out(convert, arguments->options.open);
}

/// Opening data without a table of samples makes a side index. Other programs' tar files get their index here.
void run_index(const Tool& tool, const std::vector<std::string>& sources, const OpenOptions& options) {
  for (const std::string& source : sources) {
    const std::uint64_t begin = monotonic_ns();
    std::vector<std::string> notes;
    if (has_tars(source)) notes = index_tars(source);
    const std::unique_ptr<Reader> reader = open(source, options);
    for (std::string& note : reader->notes()) notes.push_back(std::move(note));
    if (!reader->indexed())
      fail(
          "{}: the index cannot be stored beside the data or in your cache folder: ask the owner of the data to run this command, or set XDG_CACHE_HOME",
          source);
    const double seconds = seconds_between(begin, monotonic_ns());
    if (tool.json()) {
      Tool::print({{"source", source}, {"samples", reader->size()}, {"notes", notes}, {"seconds", seconds}});
    } else {
      fmt::print("{}: {} samples ({}){}\n", source, reader->size(), format_seconds(seconds),
                 joined_notes(notes));
    }
  }
}

void add_index_verb(Tool& tool) {
  const auto sources = std::make_shared<std::vector<std::string>>();
  const auto options = std::make_shared<OpenOptions>();
  CLI::App& index =
      tool.verb("index", "Find all samples once and store the index, so that opening the data is fast",
                [&tool, sources, options] { run_index(tool, *sources, *options); });
  index
      .add_option("data", *sources,
                  "Folders or files of any readable format, or folders of tar files (WebDataset)")
      ->required()
      ->check(Tool::named());
  add_leave_out(index, *options);
}

}  // namespace

void add_leave_out(CLI::App& verb, OpenOptions& options) {
  verb.add_option("--leave-out", options.leave_out,
                  "For LMDB: a key that is not a sample, such as length or '__*__' (may be repeated)")
      ->type_name("KEY")
      ->allow_extra_args(false);
}

std::string joined_notes(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += "; " + note;
  return text;
}

void add_write_verbs(Tool& tool) {
  add_create_verb(tool);
  add_convert_verb(tool);
  add_index_verb(tool);
}

}  // namespace lockstep::pack
