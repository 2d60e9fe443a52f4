// The options of text_lm's command line; options.cpp says what each does, as --help does.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::text_lm {

struct ModelOptions {
  std::int64_t vocabulary = 4096;
  std::int64_t width = 128;
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  bool activation_checkpointing = false;
};

struct Options {
  std::filesystem::path data;
  std::filesystem::path heldout;
  ModelOptions model;
  std::string device = "auto";

  std::uint64_t cap = 1024;
  int accumulate = 1;
  std::uint64_t step_tokens = 0;
  bool padded = false;

  double learning_rate = 8e-3;
  int warm_up = 10;
  double clip = 1.0;
  bool distributed_optimizer = false;
  bool bf16 = false;
  bool compress = false;
  bool deterministic = false;
  std::uint64_t seed = 1;

  // The length of the training: one of these.
  double minutes = 0.75;
  std::optional<std::int64_t> steps;
  std::optional<std::uint64_t> epochs;

  std::filesystem::path checkpoint;        ///< empty: none
  std::filesystem::path checkpoint_local;  ///< empty: none
  std::int64_t checkpoint_steps = 100;

  std::filesystem::path sample;  ///< empty: none
  bool json = false;             ///< print the results as one JSON object, and nothing else
};

/// Reads the command line. Returns main's exit code if there is nothing to train (--help, a usage error).
std::optional<int> parse(Options& options, int argc, char** argv);

}  // namespace lockstep::text_lm
