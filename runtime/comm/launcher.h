// Finds the launcher of this process in its environment. Without a launcher MPI is not used: MPI_Init is
// slow, and fails on a machine without a network.
//
// Threads: safe from any.
#pragma once

#include <cstdint>

namespace lockstep::comm {

enum class Launcher : std::uint8_t {
  none,  ///< started by hand: one rank
  mpi,   ///< mpirun, or srun with PMIx or PMI: MPI_Init finds the other ranks
};

/// Throws UsageError if srun started several tasks without PMIx: each would believe that it is the only rank.
Launcher detect_launcher();

}  // namespace lockstep::comm
