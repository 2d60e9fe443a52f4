// Pixels to what a network takes, where it computes: images travel to the device as bytes, a quarter of what
// floats would be.
//
// Threads: safe from any.
#pragma once

#include <torch/types.h>

#include <vector>

namespace lockstep::data {

/// Of each channel, in units of the whole range of a pixel: 0 to 1. These are ImageNet's.
struct PixelStatistics {
  std::vector<double> mean = {0.485, 0.456, 0.406};
  std::vector<double> deviation = {0.229, 0.224, 0.225};
};

/// uint8 [n, channels, height, width], in any memory format -> `type`, same shape, device and memory format:
/// (pixel / 255 - mean) / deviation. Throws UsageError for anything else, and where the statistics are not of
/// as many channels.
torch::Tensor normalise_images(const torch::Tensor& images, const PixelStatistics& statistics = {},
                               torch::ScalarType type = torch::kFloat32);

}  // namespace lockstep::data
