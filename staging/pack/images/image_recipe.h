// How an image is made smaller before training, once, instead of by each worker in each epoch.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "staging/pack/images/resample.h"

namespace lockstep::pack {

struct ImageRecipe {
  enum class Encoding { jpeg, png, raw };

  std::size_t resize = 0;  ///< of the shorter side, in pixels; the other side keeps the ratio. 0: as it is
  Filter filter = Filter::lanczos;
  std::optional<PixelSize> crop = {};  ///< from the middle, after scaling
  bool grey = false;  ///< one channel, with the weights of ITU-R BT.601, instead of red, green and blue
  Encoding encoding = Encoding::jpeg;
  int quality = 90;  ///< of JPEG, from 1 to 100
  /// An image with more pixels is refused before memory is allocated for it.
  std::size_t max_pixels = std::size_t{64} << 20U;
};

/// The last ending of the name of an encoded image: "jpg", "png" or "raw" (pixels without a header).
std::string ending_of(ImageRecipe::Encoding encoding);

/// Decodes a PNG or JPEG, and scales, crops and encodes it as each of the recipes says. The results do not depend on the
/// other recipes. Throws Error if the image is damaged, has too many pixels, or is smaller than the crop.
std::vector<std::vector<std::byte>> remake_image(std::span<const ImageRecipe> recipes,
                                                 std::span<const std::byte> packed);

}  // namespace lockstep::pack
