// Where the jobs that a test starts have Open MPI's shared memory: killed ranks leave its files behind.
#pragma once

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::testing {

/// A folder of their own, as long as this lives.
class MpiMemory {
 public:
  MpiMemory() {
    for (const char* name : kNames) ::setenv(name, folder_.path().c_str(), 1);
  }
  MpiMemory(const MpiMemory&) = delete;
  MpiMemory& operator=(const MpiMemory&) = delete;
  ~MpiMemory() {
    for (const char* name : kNames) ::unsetenv(name);
  }

 private:
  // Of Open MPI 4, and of 5.
  static constexpr const char* kNames[] = {"OMPI_MCA_btl_vader_backing_directory",
                                           "OMPI_MCA_btl_sm_backing_directory"};
  TemporaryFolder folder_;
};

}  // namespace lockstep::testing
