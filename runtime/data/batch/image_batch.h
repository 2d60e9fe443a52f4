// Batches of images: each sample has one image, PNG, JPEG or raw pixels, and beside it a part with its label.
// They travel to the device as bytes and are normalised there (normalise_images.h).
//
//   Loader loader(*pack, {.cap = 64}, world, {.images = ImageOptions{.size = {224, 224}, .transform =
//   crop}}); for (const auto& batch : loader) { net(normalise_images(batch.images)), batch.labels, … }
//
// Threads: values; a transform runs on several threads at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/data/image_size.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// An image on its way into the batch that is being built.
struct ImageSample {
  SampleId id = 0;
  std::string_view key = {};                  ///< the sample's name in the pack
  std::span<const std::uint8_t> pixels = {};  ///< as packed: rows of pixels, each with its channels
  ImageSize size = {};                        ///< of these
  std::size_t channels = 3;
  std::span<std::uint8_t> out = {};  ///< ImageOptions::size and as many channels: to be filled
  std::int64_t* label = nullptr;     ///< to read or change; null where there are no labels
  std::uint64_t seed = 0;  ///< for randomness: the same for this sample in this epoch, wherever it runs
  int worker = 0;          ///< which worker runs this, from 0
  std::uint64_t worker_seed = 0;  ///< differs between workers and ranks
};

/// User code that brings an image to the batch's size (crop_and_scale() helps), on the worker threads. What
/// it throws is thrown from the training loop, with the sample's name.
using ImageTransform = std::function<void(ImageSample&)>;

struct ImageOptions {
  ImageSize size;  ///< of all images of a batch
  /// 3 for PNG and JPEG; raw pixels may have any.
  std::size_t channels = 3;
  /// Of raw pixels (samples whose image part is neither PNG nor JPEG), where it is not `size`.
  ImageSize raw = {};
  /// The kind of the part that holds the label: "cls", a number as text, or "json", an object with
  /// `label_key`. Empty: there are no labels.
  std::string label = "cls";
  std::string label_key = "label";
  /// A PNG or JPEG of more pixels is refused before memory is taken for it: a few bytes can say that they are
  /// billions. Images of the batch's size are not.
  std::size_t most_pixels = std::size_t{64} << 20U;
  /// Without one, every image must have the batch's size.
  ImageTransform transform = nullptr;
};

/// Part of an image.
struct ImageBox {
  std::size_t top = 0;
  std::size_t left = 0;
  ImageSize size;
};

/// Scales a part of an image to another size, between pixels where it must, and averaging where it gets
/// smaller. Throws UsageError where the box is not in the image or the spans are not as large as said.
void crop_and_scale(std::span<const std::uint8_t> from, const ImageSize& size, std::size_t channels,
                    const ImageBox& box, std::span<std::uint8_t> to, const ImageSize& to_size);

}  // namespace lockstep::data
