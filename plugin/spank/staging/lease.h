// A step's lease on the objects that it uses in the user's store: a file, leases/held/JOB.STEP. slurmstepd
// holds a shared lock on it. lockstep-stage gives the file a second name for each object that the step uses;
// nobody uses an object whose lease files can all be locked exclusively. The kernel frees the lock when the
// last process that holds it ends, however it ends: nothing needs cleaning after a kill, a restart or a
// reboot.
//
// Threads: slurmstepd's main thread; in user_init it acts as the job's user, in exit as root.
#pragma once

#include <string>
#include <utility>

#include "common/leaf/unique_fd.h"
#include "plugin/spank/process/folder.h"

namespace lockstep::spank {

/// Holds the lock. The destructor leaves the file's name, because a forked process may still hold the lock.
class StepLease {
 public:
  /// Takes the lease in a store that exists and belongs to the calling user. Throws Error naming the path and
  /// the reason.
  static StepLease take(const std::string& store, const std::string& name);

  /// For a step that has ended: removes the name, unless another component of a heterogeneous step, which has
  /// the same job and step numbers, holds the lock too.
  void remove_name() const;

  std::string path() const { return folder_.path() + "/" + name_; }

 private:
  StepLease(Folder folder, std::string name, UniqueFd fd)
      : folder_(std::move(folder)), name_(std::move(name)), fd_(std::move(fd)) {}

  Folder folder_;
  std::string name_;
  UniqueFd fd_;
};

}  // namespace lockstep::spank
