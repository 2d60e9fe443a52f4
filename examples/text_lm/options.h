// The options of text_lm's command line.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::text_lm {

struct ModelOptions {
  std::int64_t vocabulary = 4096;
  std::int64_t width = 128;
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  bool activation_checkpointing = false;  ///< compute each block again in backward: less memory, more time
};

struct Options {
  std::filesystem::path data;     ///< packed pages to train on
  std::filesystem::path heldout;  ///< packed pages to measure on
  ModelOptions model;
  std::string device = "auto";  ///< cpu, cuda or auto (examples/shared.h)

  std::uint64_t cap = 1024;       ///< maximum tokens of a micro-batch
  int accumulate = 1;             ///< micro-batches of each rank in an optimizer step
  std::uint64_t step_tokens = 0;  ///< maximum tokens of a step on all ranks; 0: by accumulate
  bool padded = false;            ///< padded rows of pages, instead of pages end to end
  std::vector<double> speeds;     ///< relative speeds of the ranks; empty: all equal
  double learning_rate = 8e-3;
  int warm_up = 10;  ///< steps
  double weight_decay = 0.05;
  double clip = 1.0;  ///< maximum norm of the gradients
  std::string optimizer =
      "fused";                 ///< AdamW: fused, libtorch, or distributed (each rank has a part of its state)
  bool bf16 = false;           ///< forward in bfloat16 where that is precise enough
  bool compress = false;       ///< send gradients as bfloat16
  bool deterministic = false;  ///< only algorithms that give the same bits again
  std::uint64_t seed = 1;

  // The length of the training: one of these.
  double minutes = 0.75;
  std::optional<std::int64_t> steps;
  std::optional<std::int64_t> epochs;

  std::filesystem::path checkpoint;        ///< folder of checkpoints to resume from and to write; empty: none
  std::filesystem::path checkpoint_local;  ///< folder on the node's disk that is written first; empty: none
  std::int64_t checkpoint_steps = 100;

  std::filesystem::path save;             ///< file for the trained parameters; empty: none
  std::filesystem::path vocabulary_file;  ///< tokenizer.vocab, to print a text after training; empty: no text
  int sample_tokens = 120;                ///< maximum length of that text

  bool json = false;  ///< print the results as one JSON object, and nothing else
};

/// Reads the command line. Returns main's exit code if there is nothing to train (--help, a usage error).
std::optional<int> parse(Options& options, int argc, char** argv);

}  // namespace lockstep::text_lm
