// Starts jobs under mpirun, for tests that look at a job from outside.
#pragma once

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <string>
#include <vector>

#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::testing {

/// The command that runs a program with its arguments on this number of ranks.
inline std::vector<std::string> mpi_command(const std::string& ranks,
                                            const std::vector<std::string>& program) {
  std::vector<std::string> command = {
      MPIEXEC, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", ranks};
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

/// Gives jobs a temporary folder for Open MPI's shared memory, because killed ranks leave its files.
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
