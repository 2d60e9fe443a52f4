// Which launcher started this process, if any, from what it left in the environment: MPI_Init without a
// launcher is slow, and fails where the machine has no network.
//
// Threads: safe from any.
#pragma once

#include <cstdint>

namespace lockstep::comm {

enum class Launcher : std::uint8_t {
  none,  ///< started by hand: one rank
  mpi,   ///< mpirun, or srun with PMIx or PMI: MPI_Init finds the other ranks
};

/// Throws UsageError where srun started several tasks without PMIx: each would take itself for the only rank.
Launcher detect_launcher();

}  // namespace lockstep::comm
