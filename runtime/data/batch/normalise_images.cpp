#include <torch/torch.h>

#include <vector>

#include "common/error.h"
#include "runtime/data/loader_options.h"

namespace lockstep::data {
namespace {

constexpr double kWhite = 255;

}  // namespace

torch::Tensor normalise_images(const torch::Tensor& images, const PixelStatistics& statistics,
                               torch::ScalarType type) {
  const std::size_t channels = statistics.mean.size();
  if (images.scalar_type() != torch::kUInt8 || (images.dim() != 4 && images.dim() != 5) ||
      images.size(1) != static_cast<std::int64_t>(channels) || statistics.deviation.size() != channels) {
    fail_usage("images must be uint8 [n, {}, height, width] for {} means and {} deviations", channels,
               channels, statistics.deviation.size());
  }
  std::vector<double> scale;
  std::vector<double> shift;
  for (std::size_t c = 0; c < channels; ++c) {
    scale.push_back(1 / (kWhite * statistics.deviation[c]));
    shift.push_back(-statistics.mean[c] / statistics.deviation[c]);
  }
  // Computes in single precision for every result type: half types represent 255 steps poorly.
  const auto options = torch::TensorOptions().dtype(torch::kFloat32).device(images.device());
  const auto of_channels = [&](const std::vector<double>& values) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(images.dim()), 1);
    shape[1] = static_cast<std::int64_t>(channels);
    return torch::tensor(values, options).view(shape);
  };
  return images.to(torch::kFloat32).mul_(of_channels(scale)).add_(of_channels(shift)).to(type);
}

}  // namespace lockstep::data
