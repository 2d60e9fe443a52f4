#include "staging/transfer/put.h"

#include <algorithm>

#include "common/error.h"
#include "staging/transfer/put_one.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

PutResult put_alone(PutOne& one) {
  one.look();
  if (!one.find(true)) {
    one.lock(true);
    if (!one.result().hit) {
      one.begin(one.manifest().packed() ? static_cast<std::uint64_t>(one.manifest().index.status.st_size)
                                        : 0);
      one.get_list();
      one.use_list(true);
      one.start_copy();
      one.copy().run();
      one.publish();
    }
  }
  return one.result();
}

}  // namespace

Verify parse_verify(std::string_view text) {
  if (text == "quick") return Verify::quick;
  if (text == "full") return Verify::full;
  if (text == "off") return Verify::off;
  fail_usage("verify '{}' is none of quick, full and off", text);
}

std::vector<PutResult> put(const std::vector<std::string>& sources, const PutOptions& options) {
  FileSystem& system = options.file_system != nullptr ? *options.file_system : FileSystem::real();
  // Names that mean nothing are found before anything is copied.
  for (const std::string& source : sources) resolve_source(source);
  cache::Store store(fs::absolute(options.cache_dir), options.limits, system);
  store.recover();
  Limit limit(options.bandwidth, store.folder() / "bandwidth");
  std::vector<PutResult> results;
  results.reserve(sources.size());
  for (const std::string& source : sources) {
    PutOne one(store, system, limit, options, source);
    one.resolve();
    results.push_back(put_alone(one));
  }
  return results;
}

}  // namespace lockstep::transfer
