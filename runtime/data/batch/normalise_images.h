// Turns pixels into the floats that a network expects, on the device where it computes: images travel to
// the device as bytes, a quarter of the size of floats.
//
// Threads: safe from any.
#pragma once

#include <torch/types.h>

#include <vector>

namespace lockstep::data {

/// Mean and standard deviation of each channel, for pixels between 0 and 1. The defaults are ImageNet's.
struct PixelStatistics {
  std::vector<double> mean = {0.485, 0.456, 0.406};
  std::vector<double> deviation = {0.229, 0.224, 0.225};
};

/// Returns (pixel / 255 - mean) / deviation as `type`, in the shape and memory format and on the device of
/// `images`, which must be uint8 [n, channels, height, width]. Throws UsageError for other tensors, and if
/// the statistics have another number of channels.
torch::Tensor normalise_images(const torch::Tensor& images, const PixelStatistics& statistics = {},
                               torch::ScalarType type = torch::kFloat32);

}  // namespace lockstep::data
