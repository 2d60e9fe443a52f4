#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::staging_test {

bool WatchedFileSystem::watches(Kind kind) const {
  switch (kind) {
    case Kind::read:
    case Kind::syncfs:
      return reads_;
    case Kind::sync_file_range:
    case Kind::lchown:
    case Kind::utimensat:
    case Kind::lstat:
      return false;
    default:
      return true;
  }
}

ssize_t WatchedFileSystem::call(const FileCall& call) {
  // A killed process loses nothing that it has written, and this is quick.
  const bool syncs = call.kind == Kind::fsync || call.kind == Kind::syncfs;
  if (watches(call.kind)) {
    if (call.kind == Kind::write) {
      FileCall half = call;
      half.size /= 2;
      if (FileSystem::call(half) < 0) return -1;
    }
    if (const int error = before_(++calls_, call); error != 0) return failed_call(error);
  }
  return syncs ? 0 : FileSystem::call(call);
}

}  // namespace lockstep::staging_test
