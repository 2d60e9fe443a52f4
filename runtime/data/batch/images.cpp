#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "common/error.h"
#include "runtime/data/batch/image_batch.h"
#include "runtime/data/loader_options.h"
#include "staging/pack/images/resample.h"

namespace lockstep::data {
namespace {

constexpr double kWhite = 255;

// The pixels of `from`, from `first` on, that are nearest to the centres of `to` pixels spread over `count`.
std::vector<std::size_t> nearest(std::size_t first, std::size_t count, std::size_t to) {
  std::vector<std::size_t> places(to);
  for (std::size_t i = 0; i < to; ++i) places[i] = first + (2 * i + 1) * count / (2 * to);
  return places;
}

}  // namespace

void crop_and_scale(std::span<const std::uint8_t> from, const ImageSize& size, std::size_t channels,
                    const ImageBox& box, std::span<std::uint8_t> to, const ImageSize& to_size) {
  const auto pixels = [](const ImageSize& of) { return pack::PixelSize{of.height, of.width}; };
  pack::crop_and_resample(from, pixels(size), channels, {box.top, box.left, pixels(box.size)}, to,
                          pixels(to_size));
}

void crop_nearest(std::span<const std::uint8_t> from, const ImageSize& size, std::size_t bytes_of_pixel,
                  const ImageBox& box, std::span<std::uint8_t> to, const ImageSize& to_size) {
  const auto depth = [](const ImageSize& of) { return std::max<std::size_t>(of.depth, 1); };
  const auto fits = [](std::size_t first, std::size_t count, std::size_t all) {
    return count > 0 && count <= all && first <= all - count;
  };
  if (!fits(box.front, depth(box.size), depth(size)) || !fits(box.top, box.size.height, size.height) ||
      !fits(box.left, box.size.width, size.width)) {
    fail_usage("the box {} x {} at {}, {} is not in the image of {} x {}", box.size.height, box.size.width,
               box.top, box.left, size.height, size.width);
  }
  if (from.size() != size.pixels() * bytes_of_pixel || to.size() != to_size.pixels() * bytes_of_pixel) {
    fail_usage("{} and {} bytes are not images of {} x {} and {} x {} with {} bytes for each pixel",
               from.size(), to.size(), size.height, size.width, to_size.height, to_size.width,
               bytes_of_pixel);
  }
  const auto rows = nearest(box.top, box.size.height, to_size.height);
  const auto columns = nearest(box.left, box.size.width, to_size.width);
  auto out = to.begin();
  for (const std::size_t z : nearest(box.front, depth(box.size), depth(to_size))) {
    for (const std::size_t y : rows) {
      const std::size_t row = (z * size.height + y) * size.width;
      for (const std::size_t x : columns) {
        out = std::copy_n(from.begin() + static_cast<std::ptrdiff_t>((row + x) * bytes_of_pixel),
                          bytes_of_pixel, out);
      }
    }
  }
}

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
