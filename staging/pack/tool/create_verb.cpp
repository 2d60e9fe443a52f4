#include <memory>

#include "common/clock.h"
#include "common/error.h"
#include "common/units.h"
#include "staging/pack/reader.h"
#include "staging/pack/tool/packing_verb.h"
#include "staging/pack/tool/verbs.h"
#include "staging/pack/write/create.h"

namespace lockstep::pack {
namespace {

struct CreateArguments : PackingArguments {
  std::string out;
  int token_bytes = 0;
};

void run_create(const Tool& tool, const CreateArguments& arguments) {
  const std::uint64_t begin = monotonic_ns();
  CreateOptions options;
  options.out = arguments.out;
  options.token_bytes = arguments.token_bytes;
  if (arguments.source != "-") refuse_out_inside(arguments.source, options.out);
  (void)new_folder(options.out);  // before a large folder is listed
  const StrayFiles stray = list_files(arguments, options);
  const CreateResult result = run_packing(tool, options, [&] { return create(options); });
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

}  // namespace

void add_create_verb(Tool& tool) {
  const auto arguments = std::make_shared<CreateArguments>();
  CLI::App& create = tool.verb("create", "Pack the files of a folder, or the files listed on standard input",
                               [&tool, arguments] { run_create(tool, *arguments); });
  add_packing_options(create, *arguments);
  create.add_option("--out", arguments->out, "The pack: a new folder")->required()->check(Tool::named());
  create
      .add_option("--token-bytes", arguments->token_bytes,
                  "The files hold little-endian tokens of 2 or 4 bytes; 0: other data")
      ->check(CLI::IsMember({0, 2, 4}));
}

}  // namespace lockstep::pack
