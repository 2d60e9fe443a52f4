// A step's lease on what it uses from the user's store: a file, leases/held/JOB.STEP, on which slurmstepd
// holds a shared lock. lockstep-stage gives the file a second name for each object that the step uses; an
// object whose files can all be locked exclusively is in nobody's use. The kernel frees the lock when the
// last process that has it ends, however it ends, so nothing has to be tidied after a kill, a restart or a
// reboot.
//
// Threads: slurmstepd's main thread; in user_init it acts as the job's user, in exit as root.
#pragma once

#include <string>
#include <utility>

#include "plugin/spank/folder.h"

namespace lockstep::spank {

class Lease {
 public:
  /// Takes the lease in a store that is there and the calling user's. Throws Refusal naming the path and why.
  static Lease take(const std::string& store, const std::string& name);

  Lease(Lease&& other) noexcept
      : folder_(std::move(other.folder_)), name_(std::move(other.name_)), fd_(std::exchange(other.fd_, -1)) {}
  Lease& operator=(Lease&&) = delete;
  /// Gives the lease back, but leaves its name: a process that was forked may still hold it.
  ~Lease();

  /// For a step that has ended: removes the name, unless another component of a heterogeneous step, which has
  /// the same job and step numbers, holds it too.
  void remove_name() const;

  std::string path() const { return folder_.path() + "/" + name_; }

 private:
  Lease(Folder folder, std::string name, int fd)
      : folder_(std::move(folder)), name_(std::move(name)), fd_(fd) {}

  Folder folder_;
  std::string name_;
  int fd_;
};

}  // namespace lockstep::spank
