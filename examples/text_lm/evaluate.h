// Measures the model on pages that it was not trained on, and lets it write text.
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
  std::int64_t tokens = 0;   ///< predicted tokens
  std::int64_t padding = 0;  ///< tokens of padding, if the batches are padded
  double seconds = 0;
};

/// Measures on all pages, divided among the ranks in batches like those of the training. All ranks call it
/// and get the same result.
Evaluation evaluate(LanguageModel& model, const pack::Reader& pages, const Options& options, World& world);

/// "55.3 (12.3 k held-out tokens, 1.2 s)"
std::string to_text(const Evaluation& evaluation);

/// Returns a short text, drawn token by token.
std::string write_text(LanguageModel& model, const Vocabulary& vocabulary);

}  // namespace lockstep::text_lm
