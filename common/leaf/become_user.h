// Gives up root's rights for good.
//
// Threads: a child after fork, which has one thread.
#pragma once

#include <sys/types.h>

namespace lockstep {

/// Makes this process that user and group, without other groups and with no way back: the user can neither trace it nor
/// give it rights again. A process that is not root's must be that user's already. Throws Error.
void become_user(uid_t user, gid_t group);

}  // namespace lockstep
