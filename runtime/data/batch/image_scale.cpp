#include "runtime/data/batch/image_batch.h"
#include "staging/pack/images/resample.h"

namespace lockstep::data {

void crop_and_scale(std::span<const std::uint8_t> from, const ImageSize& size, std::size_t channels,
                    const ImageBox& box, std::span<std::uint8_t> to, const ImageSize& to_size) {
  const auto pixels = [](const ImageSize& of) { return pack::PixelSize{of.height, of.width}; };
  pack::crop_and_resample(from, pixels(size), channels, {box.top, box.left, pixels(box.size)}, to,
                          pixels(to_size), pack::Filter::triangle);
}

}  // namespace lockstep::data
