// Clipping of given gradients, on one rank.
#include "runtime/train/clip_grad_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

TEST(ClipGradNorm, DoesNotChangeSmallGradientsAndRefusesInvalidOnes) {
  auto parameter = torch::ones({4}, torch::kDouble).requires_grad_(true);
  parameter.mutable_grad() = torch::full({4}, 0.25, torch::kDouble);
  EXPECT_EQ(clip_grad_norm({parameter, torch::ones({2})}, 1.0), 0.5);
  EXPECT_TRUE(torch::equal(parameter.grad(), torch::full({4}, 0.25, torch::kDouble)));
  parameter.mutable_grad() = torch::full({4}, std::nan(""), torch::kDouble);
  EXPECT_TRUE(
      std::isnan(clip_grad_norm({parameter}, 1.0, {.norm_type = std::numeric_limits<double>::infinity()})));
  EXPECT_THAT(error_of([&] { clip_grad_norm({parameter}, 1.0, {.error_if_nonfinite = true}); }),
              HasSubstr("the norm of all gradients is nan"));
  EXPECT_THAT(error_of([&] { clip_grad_norm({parameter}, 1.0, {.norm_type = 0}); }),
              HasSubstr("must be more than 0"));
  EXPECT_THAT(error_of([&] { clip_grad_norm({parameter}, -1.0); }), HasSubstr("must be 0 or more"));
}

TEST(ClipGradNorm, IsComputedInFloatForHalves) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    auto parameter = torch::ones({100}, type).requires_grad_(true);
    parameter.mutable_grad() = torch::full({100}, 30.125, type);
    EXPECT_NEAR(clip_grad_norm({parameter}, 1.0), 301.25, 0.01);
  }
}

}  // namespace
}  // namespace lockstep::testing
