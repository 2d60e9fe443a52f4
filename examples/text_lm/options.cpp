#include "examples/text_lm/options.h"

#include <string>

#include "common/tool.h"
#include "examples/shared.h"

namespace lockstep::text_lm {
namespace {

void add_options(CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "Packed pages to train on (default: $LOCKSTEP_DATA/manpages)");
  app.add_option("--heldout", options.heldout,
                 "Packed pages to measure on (default: $LOCKSTEP_DATA/manpages-heldout)");
  app.add_option("--vocabulary", options.model.vocabulary, "Number of token ids")
      ->check(CLI::Range(2, 65'536));
  app.add_option("--width", options.model.width, "Width of the model")->check(CLI::PositiveNumber);
  app.add_option("--layers", options.model.layers, "Number of blocks")->check(CLI::PositiveNumber);
  app.add_option("--heads", options.model.heads, "Number of attention heads")->check(CLI::PositiveNumber);
  app.add_option("--device", options.device,
                 "Where to compute: cpu, cuda, or auto: a CUDA device if there is one")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  app.add_option("--cap", options.cap, "Maximum tokens of a micro-batch")->check(CLI::PositiveNumber);
  app.add_option("--accumulate", options.accumulate, "Micro-batches of each rank in a step")
      ->check(CLI::PositiveNumber);
  app.add_option("--step-tokens", options.step_tokens,
                 "Maximum tokens of a step on all ranks together; 0: 0.95 x ranks x accumulate x cap");
  app.add_flag(
      "--padded", options.padded,
      "Train on padded rows, one for each page, instead of pages end to end, as for a model that cannot use packed batches");
  app.add_option("--lr", options.learning_rate, "Maximum learning rate")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", options.warm_up, "Steps until the learning rate reaches its maximum")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--clip", options.clip, "Maximum norm of the gradients")->check(CLI::PositiveNumber);
  app.add_flag("--distributed-optimizer", options.distributed_optimizer,
               "Each rank has a part of the optimizer's state, instead of all of it");
  app.add_flag("--bf16", options.bf16, "Compute in bfloat16 where that is precise enough");
  app.add_flag("--compress", options.compress, "Send gradients as bfloat16");
  app.add_flag("--activation-checkpointing", options.model.activation_checkpointing,
               "Compute each block again in backward: less memory, more time");
  app.add_flag("--deterministic", options.deterministic, "Use only algorithms that give the same bits again");
  app.add_option("--seed", options.seed, "Seed of the parameters and of the order of the pages");
  auto* minutes =
      app.add_option("--minutes", options.minutes, "Train for this many minutes")->check(CLI::PositiveNumber);
  auto* steps = app.add_option("--steps", options.steps, "Train this many steps")->check(CLI::PositiveNumber);
  auto* epochs = app.add_option("--epochs", options.epochs, "Train on all pages this many times");
  epochs->check(CLI::PositiveNumber)->excludes(steps)->excludes(minutes);
  steps->excludes(minutes);
  app.add_option(
      "--checkpoint", options.checkpoint,
      "Folder of checkpoints, shared by all nodes: resume from the newest, also on another number of ranks; save regularly, at the end, and on SIGTERM or SIGUSR1");
  app.add_option(
      "--checkpoint-local", options.checkpoint_local,
      "Write checkpoints to this folder on the node's own disk first, so that training need not wait for a slow shared disk");
  app.add_option("--checkpoint-steps", options.checkpoint_steps, "Steps between two checkpoints")
      ->check(CLI::PositiveNumber);
  app.add_option("--sample", options.sample,
                 "Write a text of the trained model to this file, as token ids for spm_decode");
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
