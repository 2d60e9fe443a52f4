#include "examples/text_lm/options.h"

#include <map>
#include <string>

#include "common/environment.h"
#include "common/tool.h"

namespace lockstep::text_lm {
namespace {

// Where the plugin has put the job's data, under the names that prepare.sh gives.
std::filesystem::path staged(const char* name) {
  const auto folder = environment::get("LOCKSTEP_DATA");
  return folder ? std::filesystem::path(*folder) / name : std::filesystem::path();
}

void add_options(CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "Packed pages to train on (default: $LOCKSTEP_DATA/manpages)");
  app.add_option("--heldout", options.heldout,
                 "Packed pages to measure on (default: $LOCKSTEP_DATA/manpages-heldout)");
  app.add_option("--vocabulary", options.model.vocabulary, "Token ids are below this")
      ->check(CLI::Range(2, 65'536));
  app.add_option("--width", options.model.width, "Width of the model")->check(CLI::PositiveNumber);
  app.add_option("--layers", options.model.layers, "Blocks of the model")->check(CLI::PositiveNumber);
  app.add_option("--heads", options.model.heads, "Heads of attention")->check(CLI::PositiveNumber);
  app.add_option("--cap", options.cap, "Tokens of a micro-batch, at most")->check(CLI::PositiveNumber);
  app.add_option("--accumulate", options.accumulate, "Micro-batches of each rank in a step")
      ->check(CLI::PositiveNumber);
  app.add_flag(
      "--padded", options.padded,
      "A row for each page, padded to the longest, instead of pages end to end: what models need that "
      "cannot take these");
  app.add_option("--speeds", options.speeds,
                 "The ranks' relative speeds, one for each: a slower rank gets less")
      ->delimiter(',');
  app.add_option("--learn", options.learn,
                 "What to learn from measured steps and plan with: nothing, cost, or speeds too")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, data::Learn>{{"nothing", data::Learn::nothing},
                                             {"cost", data::Learn::cost},
                                             {"speeds", data::Learn::cost_and_speeds}}))
      ->default_str("nothing");
  app.add_option("--lr", options.learning_rate, "Highest learning rate")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", options.warm_up, "Steps until the learning rate is at its highest")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--weight-decay", options.weight_decay, "Of the matrices")->check(CLI::NonNegativeNumber);
  app.add_option("--clip", options.clip, "Highest norm of the gradients")->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Of the parameters and of the order of the pages");
  auto* minutes = app.add_option("--minutes", options.minutes, "Train this long")->check(CLI::PositiveNumber);
  auto* steps = app.add_option("--steps", options.steps, "Train so many steps")->check(CLI::PositiveNumber);
  auto* epochs = app.add_option("--epochs", options.epochs, "Train so many times through the pages");
  epochs->check(CLI::PositiveNumber)->excludes(steps)->excludes(minutes);
  steps->excludes(minutes);
  app.add_option("--checkpoint", options.checkpoint,
                 "Go on from this file where it is there, also on another number of ranks; write it now and "
                 "then, and at the end");
  app.add_option("--checkpoint-steps", options.checkpoint_steps, "Steps between two checkpoints")
      ->check(CLI::PositiveNumber);
  app.add_option("--save", options.save, "Write the trained parameters to this file");
  app.add_option("--sample", options.vocabulary_file,
                 "tokenizer.vocab: print some text that the trained model writes");
  app.add_option("--sample-tokens", options.sample_tokens, "Tokens of that text, at most")
      ->check(CLI::PositiveNumber);
}

}  // namespace

std::optional<int> parse(Options& options, int argc, char** argv) {
  options.data = staged("manpages");
  options.heldout = staged("manpages-heldout");
  bool parsed = false;
  Tool tool("text_lm",
            "Train a language model on packed pages of text, on as many ranks as the launcher starts.");
  add_options(tool.app(), options);
  const int code = tool.run(argc, argv, [&] { parsed = true; });
  options.json = tool.json();
  if (parsed) return std::nullopt;
  return code;
}

}  // namespace lockstep::text_lm
