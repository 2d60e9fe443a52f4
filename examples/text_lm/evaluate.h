// How good the model is on pages it was not trained on, and what it writes.
//
// Threads: the training thread.
#pragma once

#include <cstdint>
#include <string>

#include "examples/text_lm/model.h"
#include "examples/text_lm/options.h"
#include "examples/text_lm/vocabulary.h"
#include "runtime/comm/world.h"
#include "staging/pack/reader.h"

namespace lockstep::text_lm {

struct Evaluation {
  double perplexity = 0;     ///< e to the mean cross entropy
  std::int64_t tokens = 0;   ///< that were predicted
  std::int64_t padding = 0;  ///< tokens of it, where the batches are padded
  double seconds = 0;        ///< of the slowest rank
};

/// Splits the pages over the ranks, in batches as the training has them, and adds up; all ranks call it and
/// get the same.
Evaluation evaluate(LanguageModel& model, const pack::Reader& pages, const Options& options, World& world);

/// Text of at most `tokens` tokens, drawn token by token.
std::string write_text(LanguageModel& model, const Vocabulary& vocabulary, int tokens);

}  // namespace lockstep::text_lm
