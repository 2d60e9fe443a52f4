// Batches of images. Each sample has one image (PNG, JPEG or raw pixels) and a part with its label. Images
// travel to the device as bytes and are normalised there (normalise_images()).
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
#include <span>
#include <string>
#include <string_view>

#include "runtime/data/plan/options.h"

namespace lockstep::data {

struct ImageSize {
  std::size_t height = 0;
  std::size_t width = 0;

  /// The size of the decoded RGB image.
  std::size_t bytes() const { return height * width * kChannels; }
  static constexpr std::size_t kChannels = 3;

  bool operator==(const ImageSize&) const = default;
};

/// An image that a transform brings into a batch.
struct ImageSample {
  SampleId id = 0;
  std::string_view key = {};                  ///< the sample's name in the pack
  std::span<const std::uint8_t> pixels = {};  ///< decoded: rows of pixels, each with its channels
  ImageSize size = {};                        ///< of `pixels`
  std::size_t channels = 3;
  std::span<std::uint8_t> out = {};  ///< to fill: ImageOptions::size, with as many channels
  std::int64_t* label = nullptr;     ///< to read or change; null if there are no labels
  std::uint64_t seed = 0;            ///< for random numbers: the same for this sample and epoch on any worker
  int worker = 0;                    ///< number of the worker, from 0
  std::uint64_t worker_seed = 0;     ///< differs between workers and ranks
};

/// User code that brings an image to the batch's size (crop_and_scale() helps). It runs on the worker
/// threads. Its exceptions are thrown from the training loop, with the sample's name.
using ImageTransform = std::function<void(ImageSample&)>;

struct ImageOptions {
  ImageSize size;  ///< of all images in a batch
  /// 3 for PNG and JPEG; any number for raw pixels.
  std::size_t channels = 3;
  /// The size of raw pixels (images that are neither PNG nor JPEG), if it is not `size`.
  ImageSize raw = {};
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
};

/// Scales a part of an image to another size: it interpolates to enlarge, and averages to shrink. Throws
/// UsageError if the box is not in the image or a span does not have the size that its dimensions require.
void crop_and_scale(std::span<const std::uint8_t> from, const ImageSize& size, std::size_t channels,
                    const ImageBox& box, std::span<std::uint8_t> to, const ImageSize& to_size);

}  // namespace lockstep::data
