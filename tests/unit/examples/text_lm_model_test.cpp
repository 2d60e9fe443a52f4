#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

#include "common/error.h"
#include "examples/text_lm/model.h"

namespace lockstep::text_lm {
namespace {

struct Packed {
  torch::Tensor tokens;
  torch::Tensor positions;
  torch::Tensor cu_seqlens;
  torch::Tensor loss_mask;
};

Packed pack(const std::vector<torch::Tensor>& sequences) {
  std::vector<torch::Tensor> positions;
  std::vector<std::int32_t> bounds = {0};
  for (const auto& sequence : sequences) {
    positions.push_back(torch::arange(sequence.size(0)));
    bounds.push_back(bounds.back() + static_cast<std::int32_t>(sequence.size(0)));
  }
  const auto all_positions = torch::cat(positions);
  return {torch::cat(sequences), all_positions, torch::tensor(bounds, torch::kInt32), all_positions > 0};
}

class TextLmModel : public ::testing::Test {
 protected:
  TextLmModel() {
    torch::manual_seed(1);
    model_ = LanguageModel(ModelOptions{.vocabulary = 50, .width = 16, .layers = 2, .heads = 2});
    model_->to(torch::kFloat64);
    // One sequence is longer than a block of queries, and one has a single token.
    for (const std::int64_t length : {3, 1, 300, 40}) sequences_.push_back(torch::randint(50, {length}));
  }

  torch::Tensor logits(const Packed& packed) {
    return model_(packed.tokens, packed.positions, packed.cu_seqlens);
  }
  torch::Tensor loss(const Packed& packed) {
    return loss_sum(logits(packed), packed.tokens, packed.loss_mask);
  }

  LanguageModel model_{nullptr};
  std::vector<torch::Tensor> sequences_;
};

TEST_F(TextLmModel, AttentionPerSequenceIsPaddedMaskedAttention) {
  const auto packed = pack(sequences_);
  const std::int64_t count = 4;
  const std::int64_t longest = 300;
  const auto options = torch::TensorOptions().dtype(torch::kFloat64);
  const auto q = torch::randn({packed.tokens.size(0), 2, 8}, options).requires_grad_();
  const auto k = torch::randn_like(q).requires_grad_();
  const auto v = torch::randn_like(q).requires_grad_();
  const auto weights = torch::randn_like(q);

  const auto mixed = attention_per_sequence(q, k, v, packed.cu_seqlens);
  const auto gradients = torch::autograd::grad({(mixed * weights).sum()}, {q, k, v});

  const auto padded = [&](const torch::Tensor& rows) {
    std::vector<torch::Tensor> padded_rows;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto begin = packed.cu_seqlens[i].item<std::int64_t>();
      const auto end = packed.cu_seqlens[i + 1].item<std::int64_t>();
      padded_rows.push_back(
          torch::cat({rows.slice(0, begin, end), torch::zeros({longest - (end - begin), 2, 8}, options)}));
    }
    return torch::stack(padded_rows).transpose(1, 2);  // [n, heads, longest, width of a head]
  };
  const auto later = torch::ones({longest, longest}, torch::kBool).triu(1);
  auto scores = torch::matmul(padded(q), padded(k).transpose(2, 3)) / std::sqrt(8.0);
  scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  const auto reference = torch::matmul(torch::softmax(scores, -1), padded(v)).transpose(1, 2);
  std::vector<torch::Tensor> unpadded;
  for (std::int64_t i = 0; i < count; ++i)
    unpadded.push_back(reference[i].slice(0, 0, sequences_[i].size(0)));
  const auto expected = torch::cat(unpadded);
  const auto expected_gradients = torch::autograd::grad({(expected * weights).sum()}, {q, k, v});

  EXPECT_TRUE(torch::allclose(mixed, expected, 1e-12, 1e-12));
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(torch::allclose(gradients[i], expected_gradients[i], 1e-12, 1e-12)) << i;
}

TEST_F(TextLmModel, LossOfAPackedBatchIsTheSumOfItsSequencesLossesInAnyOrder) {
  double alone = 0;
  for (const auto& sequence : sequences_) alone += loss(pack({sequence})).item<double>();
  const auto together = loss(pack(sequences_)).item<double>();
  const auto reversed =
      loss(pack({sequences_[3], sequences_[2], sequences_[1], sequences_[0]})).item<double>();
  EXPECT_NEAR(together, alone, 1e-9 * alone);
  EXPECT_NEAR(reversed, alone, 1e-9 * alone);
}

TEST_F(TextLmModel, PaddedRowsHaveTheLossOfTheSequencesInThem) {
  constexpr std::int64_t kRow = 304;
  std::vector<torch::Tensor> rows;
  std::vector<torch::Tensor> masks;
  for (const auto& sequence : sequences_) {
    const std::int64_t length = sequence.size(0);
    rows.push_back(torch::cat({sequence, torch::full({kRow - length}, 7, torch::kInt64)}));
    const auto position = torch::arange(kRow);
    masks.push_back((position > 0).logical_and(position < length));
  }
  Packed padded = pack(rows);
  padded.loss_mask = torch::cat(masks);
  const auto expected = loss(pack(sequences_)).item<double>();
  EXPECT_NEAR(loss(padded).item<double>(), expected, 1e-9 * expected);
}

TEST_F(TextLmModel, LossIsTheSumOfEachNextTokensCrossEntropy) {
  const auto packed = pack(sequences_);
  const auto log_probabilities = torch::log_softmax(logits(packed), -1);
  double expected = 0;
  std::int64_t row = 0;
  for (const auto& sequence : sequences_) {
    for (std::int64_t i = 0; i + 1 < sequence.size(0); ++i) {
      expected -= log_probabilities[row + i][sequence[i + 1].item<std::int64_t>()].item<double>();
    }
    row += sequence.size(0);
  }
  EXPECT_NEAR(loss(packed).item<double>(), expected, 1e-9 * expected);
}

TEST_F(TextLmModel, ALaterTokenDoesNotChangeEarlierOnes) {
  auto changed = sequences_;
  const std::int64_t at = 200;
  changed[2] = sequences_[2].clone();
  changed[2][at] = (sequences_[2][at] + 1) % 50;
  const auto before = logits(pack(sequences_));
  const auto after = logits(pack(changed));
  const std::int64_t row = 3 + 1 + at;
  EXPECT_TRUE(torch::equal(before.slice(0, 0, row), after.slice(0, 0, row)));
  EXPECT_FALSE(torch::allclose(before[row], after[row]));
  EXPECT_FALSE(torch::allclose(before[row + 1], after[row + 1]));
  // Nor does it change another sequence.
  EXPECT_TRUE(torch::equal(before.slice(0, 304), after.slice(0, 304)));
}

TEST_F(TextLmModel, PositionsMatter) {
  auto packed = pack({sequences_[3]});
  const auto in_order = logits(packed);
  packed.positions = packed.positions.flip(0);
  EXPECT_FALSE(torch::allclose(in_order, logits(packed)));
}

TEST_F(TextLmModel, RefusesAWidthThatIsNotDivisibleByTheHeads) {
  EXPECT_THROW(LanguageModel(ModelOptions{.vocabulary = 50, .width = 18, .layers = 1, .heads = 4}),
               UsageError);
}

}  // namespace
}  // namespace lockstep::text_lm
