#include "staging/transfer/put.h"

#include <algorithm>

#include "common/error.h"
#include "common/file_system_around.h"
#include "staging/transfer/put_one.h"
#include "staging/transfer/put_together.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

void put_alone(PutOne& one) {
  one.look();
  one.wait_for_other();
}

}  // namespace

Verify parse_verify(std::string_view text) {
  if (text == "quick") return Verify::quick;
  if (text == "full") return Verify::full;
  if (text == "off") return Verify::off;
  fail_usage("verify '{}' is none of quick, full and off", text);
}

std::vector<PutResult> put(const std::vector<std::string>& sources, const PutOptions& options) {
  FileSystem& disk = options.file_system != nullptr ? *options.file_system : FileSystem::real();
  HangWatch& watch = options.watch != nullptr ? *options.watch : HangWatch::none();
  FileSystemAround watched(disk, [&watch](bool writes_out) { return watch.held_disk_call(writes_out); });
  FileSystem& system = options.watch != nullptr ? watched : disk;
  // Names that mean nothing are found before anything is copied.
  for (const std::string& source : sources) {
    const HangWatch::Call call = watch.call(source);
    resolve_source(source);
  }
  cache::Store store(fs::absolute(options.cache_dir), options.limits, system);
  store.recover();
  Limit limit(options.bandwidth, store.folder() / "bandwidth");
  std::vector<PutResult> results;
  results.reserve(sources.size());
  for (std::size_t s = 0; s < sources.size(); ++s) {
    PutOne one(store, system, limit, watch, options, sources[s]);
    one.resolve();
    if (options.circle != nullptr) {
      put_together(*options.circle, one, s, options);
    } else {
      put_alone(one);
    }
    results.push_back(one.result());
    if (options.done) options.done(results.back());
  }
  return results;
}

}  // namespace lockstep::transfer
