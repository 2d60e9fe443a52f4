#include "common/leaf/random.h"

#include <sys/random.h>

#include <cerrno>

#include "common/leaf/error.h"

namespace lockstep {

void fill_random(void* memory, std::size_t bytes) {
  if (::getrandom(memory, bytes, 0) != static_cast<ssize_t>(bytes)) {
    throw Error("cannot get random bytes from the kernel: " + errno_text(errno));
  }
}

std::string random_hex(std::size_t bytes) {
  std::string random(bytes, '\0');
  fill_random(random.data(), bytes);
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const char each : random) {
    const auto byte = static_cast<unsigned char>(each);
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

}  // namespace lockstep
