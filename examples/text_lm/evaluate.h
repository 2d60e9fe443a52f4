// Measures the model on pages that it was not trained on, and lets it write text.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>

#include "common/clock.h"
#include "common/units.h"
#include "examples/text_lm/model.h"
#include "runtime/data/loader.h"
#include "runtime/lockstep.h"

namespace lockstep::text_lm {

struct Evaluation {
  double perplexity = 0;     ///< e to the mean cross entropy
  std::int64_t tokens = 0;   ///< predicted tokens
  std::int64_t padding = 0;  ///< tokens of padding, if the batches are padded
  double seconds = 0;
};

/// Measures on all pages, divided among the ranks in batches like those of the training. All ranks call it
/// and get the same result.
inline Evaluation evaluate(LanguageModel& model, const pack::Reader& pages, const Options& options,
                           World& world) {
  const std::uint64_t begin = monotonic_ns();
  Validation validation(world, *model);
  const auto padding = torch::zeros(1, torch::kInt64);
  // Without the world's timer, since this is not part of a training step.
  data::Loader loader(
      pages,
      {.ranks = world.size(), .cap = options.cap, .padded = options.padded, .order = data::Order::sequential},
      world.rank(), nullptr,
      {.device = model->parameters().front().device(),
       .transform = token_check(model->options().vocabulary),
       .next_epoch_ahead = false});
  for (const auto& batch : loader) {
    if (batch.empty) continue;
    validation.add(loss_sum(model, batch), batch.loss_tokens);
    padding.add_(batch.padding);
  }
  const auto result = validation.result();
  all_reduce(world, padding, ReduceOp::sum, "padding of the held-out pages");
  return {result.perplexity, result.items, padding.item<std::int64_t>(),
          seconds_between(begin, monotonic_ns())};
}

/// "55.3 (12.3 k held-out tokens, 1.2 s)"
inline std::string to_text(const Evaluation& evaluation) {
  const auto count = [](std::int64_t tokens) { return format_count(static_cast<double>(tokens)); };
  return fmt::format("{:.1f} ({} held-out tokens{}, {})", evaluation.perplexity, count(evaluation.tokens),
                     evaluation.padding > 0 ? " and " + count(evaluation.padding) + " of padding" : "",
                     format_seconds(evaluation.seconds));
}

/// Returns a text of token ids, drawn one by one, from SentencePiece's <s> to </s> or a few lines long.
inline torch::Tensor write_text(LanguageModel& model) {
  constexpr std::int64_t begin = 1, end = 2, longest = 120;
  constexpr double temperature = 0.7;  // below 1, likely tokens become more likely
  const torch::NoGradGuard no_gradients;
  auto text = torch::tensor({begin});
  for (bool ended = false; !ended && text.size(0) < longest;) {
    const std::int64_t length = text.size(0);
    const auto logits = model(text, torch::arange(length), torch::tensor({std::int64_t{0}, length}));
    const auto next = torch::multinomial(torch::softmax(logits[length - 1] / temperature, -1), 1);
    text = torch::cat({text, next});
    ended = next.item<std::int64_t>() == end;
  }
  return text;
}

}  // namespace lockstep::text_lm
