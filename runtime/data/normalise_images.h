// Pixels to what a network takes, where it computes: images travel to the device as bytes, a quarter of what
// floats would be.
//
// Threads: safe from any.
#pragma once

#include <torch/types.h>

#include <array>

namespace lockstep::data {

/// Of each channel, in units of the whole range of a pixel: 0 to 1.
struct PixelStatistics {
  std::array<double, 3> mean{0.485, 0.456, 0.406};
  std::array<double, 3> deviation{0.229, 0.224, 0.225};
};

/// uint8 [n, height, width, 3] -> `type` [n, 3, height, width] on the same device, in the memory format
/// channels_last, as the pixels lie: (pixel / 255 - mean) / deviation. Throws UsageError for anything else.
torch::Tensor normalise_images(const torch::Tensor& pixels, const PixelStatistics& statistics = {},
                               torch::ScalarType type = torch::kFloat32);

}  // namespace lockstep::data
