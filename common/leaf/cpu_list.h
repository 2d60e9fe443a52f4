// Parses and formats CPU sets in the Linux list form ("0-11,48-59"), as /sys, taskset and our tools write
// them. The CPU numbers are the kernel's.
//
// Threads: safe from any; bind_this_thread() and interleave_memory() change the calling thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// CPU numbers are below this. The kernel's limit is CONFIG_NR_CPUS: at most 8192 in today's builds.
inline constexpr int kMaxCpus = 8192;

/// Parses a list into ascending, distinct CPU numbers. Throws UsageError naming the wrong part.
std::vector<int> parse_cpu_list(std::string_view text);

/// Formats CPU numbers (any order, repeated ones too) as a list; "" for none.
std::string format_cpu_list(std::vector<int> cpus);

/// The CPUs that the calling thread may run on.
std::vector<int> cpus_of_this_thread();

/// Binds the calling thread to the given CPUs. Throws Error naming the set when the kernel refuses.
void bind_this_thread(const std::vector<int>& cpus);

/// Interleaves the memory of this thread, and of the program that it executes, over NUMA nodes (the kernel's numbers); does
/// nothing if there are none. Throws Error naming them if the kernel refuses.
void interleave_memory(const std::vector<int>& nodes);

}  // namespace lockstep
