#include <memory>
#include <optional>

#include "common/clock.h"
#include "common/units.h"
#include "staging/pack/reader.h"
#include "staging/pack/tool/packing_verb.h"
#include "staging/pack/tool/verbs.h"
#include "staging/pack/write/append.h"

namespace lockstep::pack {
namespace {

struct AppendArguments : PackingArguments {
  std::string pack;
  std::optional<int> token_bytes;
};

void run_append(const Tool& tool, const AppendArguments& arguments) {
  const std::uint64_t begin = monotonic_ns();
  AppendOptions options;
  options.pack = arguments.pack;
  options.token_bytes = arguments.token_bytes;
  if (arguments.source != "-") refuse_out_inside(arguments.source, options.pack);
  list_files(arguments, options);
  const PackingResult result = run_packing(tool, options, [&] { return append(options); });
  const std::unique_ptr<Reader> reader = open(options.pack);
  const double seconds = seconds_between(begin, monotonic_ns());
  if (tool.json()) {
    Tool::print({{"pack", options.pack.string()},
                 {"added_samples", result.samples},
                 {"added_parts", result.parts},
                 {"added_shards", result.shards},
                 {"payload_bytes", result.payload_bytes},
                 {"bytes", result.pack_bytes},
                 {"samples", reader->size()},
                 {"continued_files", result.continued_files},
                 {"fingerprint", reader->fingerprint()},
                 {"seconds", seconds}});
    return;
  }
  fmt::print("{}: added {} sample{} ({}) in {} shard{} in {}; now {} samples\n", options.pack.string(),
             result.samples, result.samples == 1 ? "" : "s", format_bytes(result.payload_bytes),
             result.shards, result.shards == 1 ? "" : "s", format_seconds(seconds), reader->size());
}

}  // namespace

void add_append_verb(Tool& tool) {
  const auto arguments = std::make_shared<AppendArguments>();
  CLI::App& append = tool.verb("append", "Add files to a pack, as new shards",
                               [&tool, arguments] { run_append(tool, *arguments); });
  append.add_option("pack", arguments->pack, "The pack: a folder of shards")
      ->required()
      ->check(Tool::named());
  add_packing_options(append, *arguments);
  append.add_option("--token-bytes", arguments->token_bytes,
                    "Check that the pack's tokens have this size; it cannot be changed");
}

}  // namespace lockstep::pack
