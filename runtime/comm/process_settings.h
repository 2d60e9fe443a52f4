// Settings that a training process makes once, at its start, because LibTorch does not: the CPUs and the
// number of threads for computing, and a heap that keeps its pages. By default glibc returns the pages of
// freed tensors to the kernel and faults them in again at every step, up to 21,000 faults; and OpenBLAS has
// its own threads, which the settings of OpenMP do not reach.
//
// Threads: the main thread, before it starts others.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm {

/// The CPUs of this rank.
struct Cpus {
  std::vector<int> compute;  ///< LOCKSTEP_CPUS, else the affinity mask of the calling thread
  std::vector<int> all;      ///< `compute` and LOCKSTEP_WORKER_CPUS
  bool assigned = false;     ///< LOCKSTEP_CPUS is set
};
Cpus find_cpus();

/// If CPUs are assigned, binds all threads that exist now to the compute CPUs. The main thread stays where
/// OpenMP (OMP_PROC_BIND) has bound it, if that is one of them.
void bind_threads(const Cpus& cpus);

/// Makes glibc keep freed memory. Does nothing and returns false under LOCKSTEP_MALLOC=off.
bool keep_heap();

/// Makes this thread, and those that it starts, compute with zero instead of denormal numbers, which are up to a hundred
/// times slower. The smallest other float is 1.2e-38.
void flush_denormals();

/// OMP_NUM_THREADS, else this rank's share of the compute CPUs.
int choose_threads(int share_of_cpus);

/// A sentence if there are more threads than this rank's share of the CPUs.
std::optional<std::string> too_many_threads(int threads, int share_of_cpus);

/// Sets the number of threads of LibTorch, OpenMP and BLAS.
void set_threads(int threads);

/// Sets the number of threads that run tasks of LibTorch beside each other, such as torch.jit.fork; LibTorch would start
/// one for each CPU of the node. Does nothing if the program has set it or used it already.
void set_interop_threads(int threads);

/// The unit of the processor that multiplies bfloat16: "AMX", "AVX512-BF16", or empty. `cpuinfo` is the text of
/// /proc/cpuinfo.
std::string bfloat16_unit(std::string_view cpuinfo);

struct Blas {
  std::string name;   ///< "OpenBLAS 0.3.21", or the file of the library
  bool slow = false;  ///< the reference BLAS, about 20 times slower than others
};
Blas find_blas();

}  // namespace lockstep::comm
