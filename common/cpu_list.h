// CPU sets in the Linux list form ("0-11,48-59"), as /sys, taskset and our tools write them: logical OS
// indices.
//
// Threads: safe from any; a thread's own mask is changed only by bind_this_thread().
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// Parses a list into ascending, distinct CPU numbers. Throws UsageError naming the part that is wrong.
std::vector<int> parse_cpu_list(std::string_view text);

/// Prints CPU numbers (any order) as a list; "" for none.
std::string format_cpu_list(std::vector<int> cpus);

/// The CPUs that the calling thread may run on.
std::vector<int> cpus_of_this_thread();

/// Binds the calling thread to the given CPUs. Throws Error naming the set when the kernel refuses.
void bind_this_thread(const std::vector<int>& cpus);

}  // namespace lockstep
