#include "common/leaf/error.h"

#include <system_error>

namespace lockstep {

std::string errno_text(int error) {
  return std::generic_category().message(error);
}

}  // namespace lockstep
