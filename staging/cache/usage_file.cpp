#include "staging/cache/usage_file.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "staging/cache/layout.h"

namespace lockstep::cache {

void write_usage_file(const NodeReport& node, const std::function<std::string(uid_t)>& name_of) {
  nlohmann::json users = nlohmann::json::array();
  std::uint64_t shared = 0;
  for (const StoreReport& store : node.stores) {
    if (store.folder.filename() == kShared) {
      shared = store.bytes();
      continue;
    }
    users.push_back(
        {{"user", name_of(store.user)}, {"bytes", store.bytes()}, {"objects", store.objects.size()}});
  }
  const nlohmann::json usage{{"version", 1},
                             {"written", std::time(nullptr)},
                             {"users", std::move(users)},
                             {"total", node.bytes()},
                             {"shared", shared}};
  constexpr mode_t kForAll = 0644;
  write_file_atomically(node.cache / "usage.json",
                        usage.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n", kForAll);
}

}  // namespace lockstep::cache
