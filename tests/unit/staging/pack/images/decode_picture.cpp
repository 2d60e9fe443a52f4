// decode_picture FILE: writes its height and width as text, a line break, and its pixels.
#include <cstdio>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "staging/pack/images/codec.h"

int main(int argc, char** argv) {
  try {
    if (argc != 2) return 2;
    const std::string file = lockstep::read_text_file(argv[1]);
    const auto packed = std::as_bytes(std::span(file));
    const lockstep::pack::PixelSize size = lockstep::pack::image_size(packed);
    std::vector<std::uint8_t> pixels(size.height * size.width * lockstep::pack::kColours);
    lockstep::pack::decode_image(packed, pixels);
    std::printf("%zu %zu\n", size.height, size.width);
    return std::fwrite(pixels.data(), 1, pixels.size(), stdout) == pixels.size() ? 0 : 1;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
