#include "common/leaf/random.h"

#include <sys/random.h>

#include <cerrno>

#include "common/leaf/error.h"
#include "common/leaf/text.h"

namespace lockstep {

void fill_random(void* memory, std::size_t bytes) {
  if (::getrandom(memory, bytes, 0) != static_cast<ssize_t>(bytes)) {
    throw Error("cannot get random bytes from the kernel: " + errno_text(errno));
  }
}

std::string random_hex(std::size_t bytes) {
  std::string random(bytes, '\0');
  fill_random(random.data(), bytes);
  return to_hex(std::as_bytes(std::span(random)));
}

}  // namespace lockstep
