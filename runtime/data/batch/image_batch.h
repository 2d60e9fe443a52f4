// Batches of images or volumes. Each sample has one (PNG, JPEG or raw pixels), and may have a part with its label and one
// with a dense target, such as a mask. They travel to the device as bytes or int16, and become floats there
// (normalise_images()).
//
//   Loader loader(*pack, {.cap = 64}, world,
//                 {.images = ImageOptions{.size = {224, 224}, .transform = crop}});
//   for (const auto& batch : loader) { net(normalise_images(batch.images)), batch.labels, … }
//
// Threads: values; a transform runs on several threads at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/data/plan/options.h"

namespace lockstep::data {

struct ImageSize {
  std::size_t height = 0;
  std::size_t width = 0;
  std::size_t depth = 0;  ///< slices of a volume; 0: an image

  std::size_t pixels() const { return (depth == 0 ? 1 : depth) * height * width; }
  /// The size of the decoded RGB image.
  std::size_t bytes() const { return height * width * kChannels; }
  static constexpr std::size_t kChannels = 3;

  bool operator==(const ImageSize&) const = default;
};

/// The type of each channel of a pixel. Only raw pixels and targets can be int16.
enum class PixelType : std::uint8_t { uint8, int16 };

constexpr std::size_t bytes_of(PixelType type) {
  return type == PixelType::uint8 ? sizeof(std::uint8_t) : sizeof(std::int16_t);
}

/// The same memory as numbers, for PixelType::int16.
inline std::span<const std::int16_t> as_int16(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const std::int16_t*>(bytes.data()), bytes.size() / sizeof(std::int16_t)};
}
inline std::span<std::int16_t> as_int16(std::span<std::uint8_t> bytes) {
  return {reinterpret_cast<std::int16_t*>(bytes.data()), bytes.size() / sizeof(std::int16_t)};
}

/// An image that a transform brings into a batch.
struct ImageSample {
  SampleId id = 0;
  std::string_view key = {};                  ///< the sample's name in the pack
  std::span<const std::uint8_t> pixels = {};  ///< decoded: rows of pixels, each with its channels
  ImageSize size = {};                        ///< of `pixels`
  std::size_t channels = 3;
  std::span<std::uint8_t> out = {};           ///< to fill: ImageOptions::size, with as many channels
  std::span<const std::uint8_t> target = {};  ///< the dense target, as `pixels`
  ImageSize target_size = {};
  std::span<std::uint8_t> target_out = {};  ///< to fill: TargetOptions::size
  std::int64_t* label = nullptr;            ///< to read or change; null if there are no labels
  std::uint64_t seed = 0;         ///< for random numbers: the same for this sample and epoch on any worker
  int worker = 0;                 ///< number of the worker, from 0
  std::uint64_t worker_seed = 0;  ///< differs between workers and ranks
};

/// User code that brings an image to the batch's size (crop_and_scale() helps). It runs on the worker
/// threads. Its exceptions are thrown from the training loop, with the sample's name.
using ImageTransform = std::function<void(ImageSample&)>;

/// A dense target: a class or value for each pixel.
struct TargetOptions {
  /// The kind of its part: "mask.png" for `case7.mask.png`. A PNG must have one channel, and is read as the numbers that it
  /// stores: grey values, or the indices of its palette. Other parts are raw pixels.
  std::string part;
  std::size_t channels = 1;
  PixelType type = PixelType::uint8;
  ImageSize size = {};  ///< in the batch, if it is not that of the images
  ImageSize raw = {};   ///< of raw pixels, if it is not `size`
};

struct ImageOptions {
  ImageSize size;  ///< of all images in a batch
  /// 3 for PNG and JPEG; any number for raw pixels.
  std::size_t channels = 3;
  PixelType type = PixelType::uint8;
  /// The size of raw pixels (images that are neither PNG nor JPEG), if it is not `size`. Volumes are raw: slices of rows of
  /// pixels, each with its channels.
  ImageSize raw = {};
  /// Set if samples have a dense target, beside the label or (with `label` empty) instead of it.
  std::optional<TargetOptions> target = std::nullopt;
  /// The kind of the part that holds the label: "cls", a number as text, or "json", an object with the key
  /// `label_key`. Empty: samples have no labels.
  std::string label = "cls";
  std::string label_key = "label";
  /// A PNG or JPEG with more pixels is refused before memory is allocated for it, because a header of a few
  /// bytes can claim billions. Images of the batch's size are always accepted.
  std::size_t max_pixels = std::size_t{64} << 20U;
  /// JPEGs are decoded at 1/2, 1/4 or 1/8 of their size, several times as fast, as long as both sides stay at least this.
  /// Use the batch's size if the transform scales complete images, and more if it scales parts. 0 × 0: at full size.
  ImageSize decode_at_least = {};
  /// Without a transform every image must have the batch's size.
  ImageTransform transform = nullptr;
};

/// A rectangle in an image.
struct ImageBox {
  std::size_t top = 0;
  std::size_t left = 0;
  ImageSize size;
  std::size_t front = 0;  ///< first slice, in volumes
};

/// Scales a part of an image to another size: it interpolates to enlarge, and averages to shrink. Throws
/// UsageError if the box is not in the image or a span does not have the size that its dimensions require.
void crop_and_scale(std::span<const std::uint8_t> from, const ImageSize& size, std::size_t channels,
                    const ImageBox& box, std::span<std::uint8_t> to, const ImageSize& to_size);

/// The same for volumes and targets, of any type: takes the nearest pixel, because a mean of two classes is another class.
/// `bytes_of_pixel` is the number of channels, times two for int16.
void crop_nearest(std::span<const std::uint8_t> from, const ImageSize& size, std::size_t bytes_of_pixel,
                  const ImageBox& box, std::span<std::uint8_t> to, const ImageSize& to_size);

}  // namespace lockstep::data
