// The switches of the simulated CUDA runtime and NCCL, for tests. The two libraries have the ABI of the calls that the
// product makes; a program gets them by linking them or with tests/device/run.sh.
//
// A stream is a queue that a thread works off, each operation after a delay that the seed chooses. While an operation
// runs, the memory that it will write holds 0xFF bytes (NaN). Device memory cannot be touched by the host, as on a GPU.
//
// Every operation carries a vector clock and the memory that it reads and writes. Two operations that touch the same
// memory, at least one of them writing, without an order made by streams, events and synchronisation, are a race. Races
// are found when operations are queued, so they do not depend on the delays. As in PyTorch's CUDA Sanitizer: Mattern's
// vector clocks, one entry per stream and host thread.
//
// What orders: the stream; events; the legacy default stream; a host thread's synchronisation, for all host threads
// (the program must order these by locks, which the simulation does not see); a query that says "finished", for the
// thread that asked.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace lockstep::simulated {

/// Chooses the delays from now on; also SIMULATED_SEED.
void set_seed(std::uint64_t seed);

/// Races, and uses of memory that was freed or is not the device's, since the last call: one text each. A process
/// that ends with findings prints them and exits with 66.
std::vector<std::string> take_findings();

/// Their number; does not make the texts, which takes a while.
std::size_t drop_findings();

/// The devices on which this process has a context; a context takes hundreds of megabytes on a GPU.
std::set<int> contexts();

/// An access by the calling thread to memory that operations use, such as page-locked memory.
void access_from_host(const void* memory, std::size_t bytes, bool write, const char* label);

/// The calling thread learns what other host threads know: it has been told by means that the simulation does not see.
void learn_from_other_threads();

/// Whether the calling thread knows that all collectives of this process so far have ended.
bool knows_all_collectives();

/// Memory that an operation uses.
struct Access {
  const void* memory = nullptr;
  std::size_t bytes = 0;
  bool write = false;
};

/// Work that the calling thread does in the order of a stream, while the object exists. The constructor waits for the
/// stream's earlier work, as no GPU would; the race detector does not count this as order. `stream`: a cudaStream_t.
class Kernel {
 public:
  Kernel(void* stream, const char* name, const std::vector<Access>& uses);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  /// Memory that was found to be used only now.
  void also_uses(const Access& access);

 private:
  struct State;
  State* state_;
};

/// The address at which the program can touch the memory of a device, in a Kernel.
void* reachable(const void* memory);

/// The device that has this memory; -1: none, or the host.
int device_of(const void* memory);

/// Frees memory, of a device or page-locked, as an allocator does that may use it again for the next work of `stream`:
/// a race with all uses of it that neither that stream nor one of `others` has waited for. Nothing waits.
void free_in_order(void* memory, void* stream, const std::vector<void*>& others);

enum class Wait {
  stream,  ///< cudaStreamWaitEvent
  host,    ///< a synchronisation of the calling thread
  query,   ///< cudaEventQuery: the event says "finished" at once; counted by the event's record
  launch,  ///< ncclCommGetAsyncError: NCCL says that it has launched a collective before it has
};

/// From now on the n-th wait of this kind does nothing; 0: none. Restarts the counts.
void drop_wait(Wait kind, int n);
/// The waits of this kind, or the records of events, since the last drop_wait().
int waits(Wait kind);
/// The calls of the product in which a wait was dropped since the last call of this function: "file:line".
std::set<std::string> take_dropped_sites();

/// Calls since the last call of this function, by any thread, that are forbidden while a stream is captured into a CUDA
/// graph: synchronisations, queries, times of events, blocking copies. Allocations are not counted: while LibTorch
/// captures, its allocator takes them from a pool.
int take_calls_unfit_for_capture();

enum class Fault {
  device,      ///< the n-th operation fails, and with it the device
  collective,  ///< the n-th collective call of NCCL begins and never ends, and the communicator gets an error
  absence,     ///< this rank never takes part in the n-th collective
  call,        ///< the n-th call of NCCL fails
  setup,       ///< this rank never arrives at the n-th start of a communicator
  cudart,      ///< the n-th call of the CUDA runtime by the thread that asked for the fault fails
};

/// The n-th such thing from now on goes wrong; 0: none.
void inject(Fault kind, int n);

}  // namespace lockstep::simulated
