#include "plugin/spank/staging/srun_link.h"

#include <array>
#include <charconv>

#include "common/leaf/error.h"
#include "common/leaf/port.h"

namespace lockstep::spank {
namespace {

[[noreturn]] void refuse() {
  throw Error("srun and this node run different versions of the plugin: install the same one everywhere");
}

}  // namespace

std::string SrunLink::encode() const {
  return std::to_string(port) + "," + key + "," + host + "," + folder;
}

SrunLink SrunLink::decode(const std::string& text) {
  SrunLink link;
  std::array<std::size_t, 3> comma{};
  std::size_t from = 0;
  for (std::size_t& at : comma) {
    at = text.find(',', from);
    if (at == std::string::npos) refuse();
    from = at + 1;
  }
  const char* const end = text.data() + comma[0];
  const auto [stop, error] = std::from_chars(text.data(), end, link.port);
  link.key = text.substr(comma[0] + 1, comma[1] - comma[0] - 1);
  link.host = text.substr(comma[1] + 1, comma[2] - comma[1] - 1);
  link.folder = text.substr(comma[2] + 1);
  const bool good_key =
      link.key.size() == 2 * kKeyBytes && link.key.find_first_not_of("0123456789abcdef") == std::string::npos;
  const bool good_host = link.host.find_first_of(" \t\n/") == std::string::npos;
  if (error != std::errc{} || stop != end || link.port < 0 || link.port > kMaxPort || !good_key ||
      !good_host || !link.folder.starts_with('/')) {
    refuse();
  }
  return link;
}

}  // namespace lockstep::spank
