#include <memory>

#include "common/clock.h"
#include "common/error.h"
#include "common/progress.h"
#include "common/units.h"
#include "staging/pack/reader.h"
#include "staging/pack/tool/packing_verb.h"
#include "staging/pack/tool/verbs.h"
#include "staging/pack/write/convert.h"

namespace lockstep::pack {
namespace {

struct ConvertArguments {
  std::string source;
  std::string out;
  std::string to = "tar";
  std::string shard_size = "256M";
  std::string kind;
  OpenOptions open;
};

void run_convert(const Tool& tool, const ConvertArguments& arguments) {
  const std::uint64_t begin = monotonic_ns();
  ConvertOptions options;
  options.source = arguments.source;
  options.out = arguments.out;
  options.shard_bytes = parse_shard_size(arguments.shard_size);
  options.kind = arguments.kind;
  options.open = arguments.open;
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

}  // namespace

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
      "--kind", arguments->kind,
      "File name ending for samples of a source without file names (default: tok for tokens, else bin)");
  add_leave_out(convert, arguments->open);
}

}  // namespace lockstep::pack
