// What LibTorch leaves to chance and a training process should set once, at start: which CPUs compute, with
// how many threads, and that the heap keeps its pages. glibc gives freed tensors' pages back to the kernel
// and faults them in again every step, up to 21,000 faults; and OpenBLAS brings threads of its own that
// OpenMP's settings do not reach.
//
// Threads: the main thread, before others are started.
#pragma once

#include <string>
#include <vector>

namespace lockstep::train {

/// The CPUs of this rank, by what they are for.
struct Cpus {
  std::vector<int> compute;  ///< LOCKSTEP_CPUS, else the mask of the calling thread
  std::vector<int> all;      ///< and LOCKSTEP_WORKER_CPUS
  bool given = false;        ///< LOCKSTEP_CPUS is set
};
Cpus find_cpus();

/// Narrows all threads that exist now to the compute CPUs, where they were given. The main thread is left
/// where OpenMP (OMP_PROC_BIND) has put it on one of them.
void narrow_threads(const Cpus& cpus);

/// Has glibc keep what is freed. Does nothing, and says false, under LOCKSTEP_MALLOC=off.
bool keep_heap();

/// OMP_NUM_THREADS, else the compute CPUs shared out among the ranks that have the same ones.
int choose_threads(const Cpus& cpus, int ranks_on_these_cpus);

/// For LibTorch, OpenMP and BLAS.
void set_threads(int threads);

struct Blas {
  std::string name;   ///< "OpenBLAS 0.3.21", or the file it comes from
  bool slow = false;  ///< the reference BLAS: right, and some 20 times slower
};
Blas find_blas();

}  // namespace lockstep::train
