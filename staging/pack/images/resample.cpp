#include "staging/pack/images/resample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "common/error.h"
#include "common/vectorised.h"

namespace lockstep::pack {
namespace {

// The pixels of a row (or column) that make up one scaled pixel, and their weights.
struct Tap {
  std::size_t first = 0;
  std::vector<float> weights;
};

std::vector<Tap> taps_of(std::size_t from, std::size_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double reach = std::max(1.0, scale);  // half of the triangle's base
  std::vector<Tap> taps(to);
  for (std::size_t i = 0; i < to; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = static_cast<std::size_t>(std::max(0.0, std::floor(centre - reach + 0.5)));
    const auto end = std::min(from, static_cast<std::size_t>(std::floor(centre + reach + 0.5)));
    taps[i].first = first;
    double sum = 0;
    for (std::size_t x = first; x < end; ++x) {
      const double weight = std::max(0.0, 1 - std::abs(static_cast<double>(x) + 0.5 - centre) / reach);
      taps[i].weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    for (float& weight : taps[i].weights) weight /= static_cast<float>(sum);
  }
  return taps;
}

LOCKSTEP_VECTORISED void add_row(const std::uint8_t* row, float weight, std::span<float> sums) {
  for (std::size_t x = 0; x < sums.size(); ++x) sums[x] += weight * static_cast<float>(row[x]);
}

// Sums `kAtOnce` channels at a time, since a sum waits for its last addition.
template <std::size_t kAtOnce>
void scale_row(std::span<const float> row, std::size_t channels, const std::vector<Tap>& columns,
               std::uint8_t* out) {
  for (const Tap& tap : columns) {
    for (std::size_t channel = 0; channel < channels; channel += kAtOnce) {
      std::array<float, kAtOnce> sums{};
      const float* pixel = row.data() + tap.first * channels + channel;
      for (const float weight : tap.weights) {
        for (std::size_t c = 0; c < kAtOnce; ++c) sums[c] += weight * pixel[c];
        pixel += channels;
      }
      for (const float sum : sums) *out++ = static_cast<std::uint8_t>(std::clamp(sum + 0.5F, 0.0F, 255.0F));
    }
  }
}

}  // namespace

void crop_and_resample(std::span<const std::uint8_t> from, PixelSize size, std::size_t channels,
                       const PixelBox& box, std::span<std::uint8_t> to, PixelSize to_size) {
  const PixelSize& part = box.size;
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
  std::vector<float> sums(part.width * channels);
  for (std::size_t y = 0; y < to_size.height; ++y) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (std::size_t i = 0; i < rows[y].weights.size(); ++i) {
      add_row(row_of(rows[y].first + i), rows[y].weights[i], sums);
    }
    std::uint8_t* const out = to.data() + y * to_size.width * channels;
    if (channels == 3) {
      scale_row<3>(sums, channels, columns, out);
    } else {
      scale_row<1>(sums, channels, columns, out);
    }
  }
}

}  // namespace lockstep::pack
