#include <algorithm>
#include <cmath>
#include <vector>

#include "common/error.h"
#include "runtime/data/batch/image_batch.h"

namespace lockstep::data {
namespace {

// The pixels of a row (or column) that make up one scaled pixel, and their weights. The weights form a
// triangle as wide as the scale, so that shrinking uses all pixels.
struct Tap {
  std::size_t first = 0;
  std::vector<float> weights;
};

std::vector<Tap> taps_of(std::size_t from, std::size_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double reach = std::max(1.0, scale);
  std::vector<Tap> taps(to);
  for (std::size_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale - 0.5;
    const auto last = static_cast<double>(from - 1);
    const auto first = static_cast<std::size_t>(std::clamp(std::floor(centre - reach) + 1, 0.0, last));
    const auto end = static_cast<std::size_t>(std::clamp(std::ceil(centre + reach) - 1, 0.0, last));
    taps[i].first = first;
    double sum = 0;
    for (std::size_t x = first; x <= end; ++x) {
      const double weight = std::max(0.0, 1 - std::abs(static_cast<double>(x) - centre) / reach);
      taps[i].weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    for (float& weight : taps[i].weights) weight /= static_cast<float>(sum);
  }
  return taps;
}

}  // namespace

void crop_and_scale(std::span<const std::uint8_t> from, const ImageSize& size, std::size_t channels,
                    const ImageBox& box, std::span<std::uint8_t> to, const ImageSize& to_size) {
  const ImageSize& part = box.size;
  if (part.height == 0 || part.width == 0 || box.top + part.height > size.height ||
      box.left + part.width > size.width) {
    fail_usage("the box of {} x {} at {}, {} is not within the image of {} x {}", part.height, part.width,
               box.top, box.left, size.height, size.width);
  }
  if (from.size() != size.height * size.width * channels ||
      to.size() != to_size.height * to_size.width * channels) {
    fail_usage("the spans of {} and {} bytes do not fit images of {} x {} and {} x {} with {} channels",
               from.size(), to.size(), size.height, size.width, to_size.height, to_size.width, channels);
  }
  const auto row_of = [&](std::size_t y) {
    return from.data() + ((box.top + y) * size.width + box.left) * channels;
  };
  if (part == to_size) {
    for (std::size_t y = 0; y < part.height; ++y) {
      std::copy_n(row_of(y), part.width * channels, to.data() + y * part.width * channels);
    }
    return;
  }
  const std::vector<Tap> columns = taps_of(part.width, to_size.width);
  const std::vector<Tap> rows = taps_of(part.height, to_size.height);
  // The part scaled horizontally, but not yet vertically.
  std::vector<float> narrow(part.height * to_size.width * channels);
  for (std::size_t y = 0; y < part.height; ++y) {
    const std::uint8_t* const row = row_of(y);
    float* out = narrow.data() + y * to_size.width * channels;
    for (const Tap& tap : columns) {
      for (std::size_t c = 0; c < channels; ++c) {
        float sum = 0;
        for (std::size_t i = 0; i < tap.weights.size(); ++i) {
          sum += tap.weights[i] * static_cast<float>(row[(tap.first + i) * channels + c]);
        }
        *out++ = sum;
      }
    }
  }
  const std::size_t stride = to_size.width * channels;
  for (std::size_t y = 0; y < to_size.height; ++y) {
    for (std::size_t x = 0; x < stride; ++x) {
      float sum = 0;
      for (std::size_t i = 0; i < rows[y].weights.size(); ++i) {
        sum += rows[y].weights[i] * narrow[(rows[y].first + i) * stride + x];
      }
      to[y * stride + x] = static_cast<std::uint8_t>(std::clamp(sum + 0.5F, 0.0F, 255.0F));
    }
  }
}

}  // namespace lockstep::data
