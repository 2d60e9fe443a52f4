// An object that another process of the user may be copying: found, waited for, or copied again beside it.

#include "common/error.h"
#include "staging/pack/digest.h"
#include "staging/transfer/put_one.h"

namespace lockstep::transfer {
namespace {

struct Busy {};

/// The name under which an object is copied again. The process that does not get on may go on at any time,
/// with the first name's lock and its half copy: both stay its own.
std::string second_object(const std::string& object) {
  const std::string text = "again\n" + object;
  return pack::to_hex(pack::digest_of(std::as_bytes(std::span(text))));
}

}  // namespace

void PutOne::use_object(const std::string& name) {
  manifest_.object = name;
  result_.object = name;
}

// Somebody else has the object's lock.
void PutOne::must_wait(bool wait) {
  if (!wait) throw Busy();
  if (!waited_ && options_.waiting) options_.waiting(given_);
  waited_ = true;
}

bool PutOne::find(bool wait) {
  if (find_shared()) return true;
  const std::string second = second_object(manifest_.object);
  if (!store_.has(manifest_.object) && store_.has(second)) use_object(second);
  try {
    cache::Hold hold = store_.lock(
        manifest_.object, FileSystem::LockKind::shared, [&] { must_wait(wait); }, options_.copier_patience);
    if (!store_.has(manifest_.object) || !check(options_.verify, store_.files(manifest_.object)))
      return false;
    hold_ = std::move(hold);
    result_.hit = true;
    result_.bytes = store_.info(manifest_.object, true).bytes;
    lease();
    return true;
  } catch (const Busy&) {
    return false;
  }
}

bool PutOne::lock(bool wait) {
  try {
    hold_ = store_.lock(
        manifest_.object, FileSystem::LockKind::exclusive, [&] { must_wait(wait); },
        options_.copier_patience);
  } catch (const Busy&) {
    return false;
  }
  if (!store_.has(manifest_.object)) return true;
  // Another process may have done the work meanwhile. Damage that was seen once is looked for everywhere,
  // since a quick check may miss it the second time.
  if (check(damage_seen_ ? Verify::full : options_.verify, store_.files(manifest_.object))) {
    result_.hit = true;
    result_.bytes = store_.info(manifest_.object, true).bytes;
    lease();
  } else {
    store_.remove(manifest_.object);
  }
  return true;
}

void PutOne::wait_for_other() {
  for (;;) {
    try {
      return find_or_copy();
    } catch (const cache::NoProgress& stopped) {
      note(fmt::format("copied again: {}", stopped.what()));
      use_object(second_object(manifest_.object));
    }
  }
}

void PutOne::find_or_copy() {
  if (find(true)) return;
  lock(true);
  if (result_.hit) return;
  make_list();
  use_list(true);
  start_copy();
  copy_->run();
  publish();
}

}  // namespace lockstep::transfer
