#include "common/leaf/host_name.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>

#include "common/leaf/error.h"

namespace lockstep {

std::string full_host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) {
    throw Error("cannot read the host name: " + errno_text(errno));
  }
  return name.data();
}

std::string host_name() {
  const std::string whole = full_host_name();
  return whole.substr(0, whole.find('.'));
}

}  // namespace lockstep
