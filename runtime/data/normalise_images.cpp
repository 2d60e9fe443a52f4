#include "runtime/data/normalise_images.h"

#include <torch/torch.h>

#include <vector>

#include "common/error.h"

namespace lockstep::data {
namespace {

constexpr double kWhite = 255;

}  // namespace

torch::Tensor normalise_images(const torch::Tensor& pixels, const PixelStatistics& statistics,
                               torch::ScalarType type) {
  if (pixels.scalar_type() != torch::kUInt8 || pixels.dim() != 4 || pixels.size(3) != 3) {
    fail_usage("images are uint8 [n, height, width, 3]");
  }
  std::vector<double> scale;
  std::vector<double> shift;
  for (std::size_t c = 0; c < 3; ++c) {
    scale.push_back(1 / (kWhite * statistics.deviation[c]));
    shift.push_back(-statistics.mean[c] / statistics.deviation[c]);
  }
  // In single precision, whatever the result is: half types do not hold 255 steps well.
  const auto options = torch::TensorOptions().dtype(torch::kFloat32).device(pixels.device());
  const torch::Tensor normal =
      pixels.to(torch::kFloat32).mul_(torch::tensor(scale, options)).add_(torch::tensor(shift, options));
  return normal.permute({0, 3, 1, 2}).to(type);
}

}  // namespace lockstep::data
