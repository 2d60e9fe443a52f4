#include "plugin/spank/staging/srun_link.h"

#include <sstream>

#include "common/leaf/error.h"
#include "common/leaf/network.h"
#include "common/leaf/text.h"

namespace lockstep::spank {

std::string SrunLink::encode() const {
  return std::to_string(port) + "," + key + "," + host + "," + folder;
}

SrunLink SrunLink::decode(const std::string& text) {
  SrunLink link;
  std::string port;
  std::istringstream fields(text);
  std::getline(fields, port, ',');
  std::getline(fields, link.key, ',');
  std::getline(fields, link.host, ',');
  std::getline(fields, link.folder, '\0');
  link.port = to_number<int>(port).value_or(-1);
  const bool good_key =
      link.key.size() == 2 * kKeyBytes && link.key.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (link.port < 0 || link.port > kMaxPort || !good_key ||
      link.host.find_first_of(" \t\n/") != std::string::npos || !link.folder.starts_with('/'))
    throw Error("srun and this node run different versions of the plugin: install the same one everywhere");
  return link;
}

}  // namespace lockstep::spank
