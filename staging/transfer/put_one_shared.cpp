// What an admin has put into the shared store, as a user's put finds it.

#include <unistd.h>

#include <algorithm>

#include "common/error.h"
#include "staging/pack/index.h"
#include "staging/transfer/check.h"
#include "staging/transfer/copy/parallel.h"
#include "staging/transfer/put_one.h"

namespace lockstep::transfer {

namespace fs = std::filesystem;

// The shared copy of files is for who may read them at the source. A pack's shards are asked for by sample:
// its index was read, and it may have thousands.
void PutOne::check_readable_files(const fs::path& copy) const {
  std::vector<std::string> names = names_of(manifest_.files);
  if (manifest_.packed()) {
    constexpr std::size_t kAsked = 8;
    const pack::Index index = pack::Index::load(copy / pack::kIndexName);
    const std::size_t last = index.shards() > 0 ? index.shards() - 1 : 0;
    const std::size_t asked = std::min(kAsked, index.shards());
    for (std::size_t i = 0; i < asked; ++i)
      names.emplace_back(index.shard_name(asked > 1 ? i * last / (asked - 1) : 0));
  }
  const fs::path& folder = manifest_.packed() ? source_.folder : manifest_.folder;
  parallel_for(names.size(), kMaxThreads, [&](std::size_t f, const std::function<bool()>&) {
    const HangWatch::Call call = watch_.call(folder / names[f]);
    if (::access((folder / names[f]).c_str(), R_OK) != 0)
      fail_errno("cannot open {}", (folder / names[f]).string());
  });
}

bool PutOne::check_shared() {
  try {
    check_copy(shared_->files(manifest_.object), options_.verify, threads());
  } catch (const Error& damage) {
    note(fmt::format("the shared copy is damaged, tell the admin ({})", damage.what()));
    return false;
  }
  if (options_.lease.empty()) return true;
  try {
    shared_->hold(manifest_.object, options_.lease);
    return true;
  } catch (const Error& error) {
    // Another file system than the user's store, or somebody stands in the way: a copy of one's own is as
    // good.
    note(fmt::format("the shared copy is not used, since it could be removed meanwhile: {}", error.what()));
    return false;
  }
}

// What an admin has put there is for who can read the source.
bool PutOne::find_shared() {
  if (options_.shared.empty() || shared_damaged_) return false;
  try {
    shared_ = cache::Shared::open(options_.shared, system_);
  } catch (const Error& untrusted) {
    // The admin's to mend, and no reason to stop anybody's job.
    note(untrusted.what());
  }
  if (!shared_) return false;
  std::optional<cache::Hold> hold = shared_->find(manifest_.object);
  if (!hold) return false;
  if (!check_shared()) return false;
  check_readable_files(shared_->files(manifest_.object));
  hold_ = std::move(hold);
  result_.hit = true;
  result_.shared = true;
  result_.bytes = shared_->info(manifest_.object, true).bytes;
  return true;
}

}  // namespace lockstep::transfer
