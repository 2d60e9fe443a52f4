#include "examples/text_lm/evaluate.h"

#include <vector>

#include "common/clock.h"
#include "runtime/data/loader.h"
#include "runtime/ddp/collectives.h"
#include "runtime/train/validation.h"

namespace lockstep::text_lm {
namespace {

// Below 1, likely tokens become more likely.
constexpr double kTemperature = 0.7;

}  // namespace

Evaluation evaluate(LanguageModel& model, const pack::Reader& pages, const Options& options, World& world) {
  const std::uint64_t begin = monotonic_ns();
  Validation validation(world, *model);
  std::int64_t padding = 0;
  // Without the world's timer, since this is not part of a training step.
  data::Loader loader(
      pages,
      {.ranks = world.size(), .cap = options.cap, .padded = options.padded, .order = data::Order::sequential},
      world.rank(), nullptr, {.device = model->parameters().front().device(), .next_epoch_ahead = false});
  for (const auto& batch : loader) {
    if (batch.empty) continue;
    check_tokens(batch.tokens, model->options().vocabulary);
    validation.add(loss_sum(model, batch), batch.loss_tokens);
    padding += batch.padding;
  }
  const auto result = validation.result();
  const auto padding_of_all = torch::tensor({padding});
  all_reduce(world, padding_of_all, ReduceOp::sum, "padding of the held-out pages");
  return {result.perplexity, result.items, padding_of_all.item<std::int64_t>(),
          seconds_between(begin, monotonic_ns())};
}

std::string write_text(LanguageModel& model, const Vocabulary& vocabulary, int tokens) {
  const torch::NoGradGuard no_gradients;
  std::vector<int> written;
  auto text = torch::tensor({static_cast<std::int64_t>(vocabulary.begin_of_text())});
  while (static_cast<int>(written.size()) < tokens) {
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
