#include "plugin/spank/staging/lease.h"

#include <sys/file.h>
#include <unistd.h>

namespace lockstep::spank {

StepLease StepLease::take(const std::string& store, const std::string& name) {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  Folder held = Folder::open_path(store).own("leases", uid, gid, 0700).own("held", uid, gid, 0700);
  UniqueFd fd = held.lock_shared(name);
  return {std::move(held), name, std::move(fd)};
}

void StepLease::remove_name() const {
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 && folder_.is_name_of(name_, fd_.get())) {
    ::unlinkat(folder_.fd(), name_.c_str(), 0);
  }
}

}  // namespace lockstep::spank
