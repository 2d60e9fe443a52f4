#include "examples/text_lm/evaluate.h"

#include <fmt/format.h>

#include <vector>

#include "common/clock.h"
#include "common/units.h"
#include "runtime/data/loader.h"
#include "runtime/lockstep.h"

namespace lockstep::text_lm {
namespace {

constexpr double kTemperature = 0.7;  // below 1, likely tokens become more likely
constexpr std::size_t kTextTokens = 120;

}  // namespace

Evaluation evaluate(LanguageModel& model, const pack::Reader& pages, const Options& options, World& world) {
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

std::string to_text(const Evaluation& evaluation) {
  const auto count = [](std::int64_t tokens) { return format_count(static_cast<double>(tokens)); };
  return fmt::format("{:.1f} ({} held-out tokens{}, {})", evaluation.perplexity, count(evaluation.tokens),
                     evaluation.padding > 0 ? " and " + count(evaluation.padding) + " of padding" : "",
                     format_seconds(evaluation.seconds));
}

std::string write_text(LanguageModel& model, const Vocabulary& vocabulary) {
  const torch::NoGradGuard no_gradients;
  std::vector<int> written;
  auto text = torch::tensor({static_cast<std::int64_t>(vocabulary.begin_of_text())});
  while (written.size() < kTextTokens) {
    const std::int64_t length = text.size(0);
    const auto logits = model(text, torch::arange(length), torch::tensor({std::int64_t{0}, length}));
    const auto likely = logits[length - 1].slice(0, 0, vocabulary.size()) / kTemperature;
    const auto next = torch::multinomial(torch::softmax(likely, -1), 1);
    written.push_back(next.item<int>());
    if (written.back() == vocabulary.end_of_text()) break;
    text = torch::cat({text, next});
  }
  return vocabulary.text(written);
}

}  // namespace lockstep::text_lm
