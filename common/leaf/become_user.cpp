#include "common/leaf/become_user.h"

#include <grp.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "common/leaf/error.h"

namespace lockstep {

void become_user(uid_t user, gid_t group) {
  // All three ids and the groups: a process with a saved id could become root again.
  const bool root = ::geteuid() == 0;
  if ((root && (::setgroups(0, nullptr) != 0 || ::setresgid(group, group, group) != 0 ||
                ::setresuid(user, user, user) != 0)) ||
      ::geteuid() != user) {
    throw Error("cannot become user " + std::to_string(user) + ": " + errno_text(root ? errno : EPERM));
  }
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ::prctl(PR_SET_DUMPABLE, 0);
}

}  // namespace lockstep
