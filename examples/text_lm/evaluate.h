// How good the model is on pages it was not trained on, and what it writes.
//
// Threads: the training thread.
#pragma once

#include <cstdint>
#include <string>

#include "examples/text_lm/model.h"
#include "examples/text_lm/vocabulary.h"
#include "runtime/comm/world.h"
#include "staging/pack/reader.h"

namespace lockstep::text_lm {

struct Evaluation {
  double perplexity = 0;    ///< e to the mean cross entropy
  std::int64_t tokens = 0;  ///< that were predicted
  double seconds = 0;       ///< of the slowest rank
};

/// Splits the pages over the ranks and adds up; all ranks call it and get the same.
Evaluation evaluate(LanguageModel& model, const pack::Reader& pages, std::uint64_t cap, World& world);

/// Text of at most `tokens` tokens, drawn token by token.
std::string write_text(LanguageModel& model, const Vocabulary& vocabulary, int tokens);

}  // namespace lockstep::text_lm
