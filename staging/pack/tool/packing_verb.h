// The common part of create and convert on the command line: options, progress, and a clean end after a signal.
//
// Threads: main's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/tool.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/file_list.h"
#include "staging/pack/write/packing.h"

namespace lockstep::pack {

struct PackingArguments {
  std::string source;
  std::string shard_size = "256M";
  int threads = 0;
  std::vector<std::string> filters;
};

void add_packing_options(CLI::App& verb, PackingArguments& arguments);

/// --leave-out, of the verbs that read data.
void add_leave_out(CLI::App& verb, OpenOptions& options);

/// "256M" in bytes. Throws UsageError if it is not a size, or is 0.
std::uint64_t parse_shard_size(const std::string& text);

/// Lists the files below the source, or the files named on standard input. Returns the files that are left out.
StrayFiles list_files(const PackingArguments& arguments, PackingOptions& options);

/// "; NOTE; NOTE" for the end of a line about a pack.
std::string joined_notes(const std::vector<std::string>& notes);

/// Runs `work`. SIGINT, SIGTERM and SIGHUP set `stop`; when the work then throws Stopped, this prints the message and
/// ends the process by that signal. A second signal ends the process at once.
void run_until_stopped(const Tool& tool, const std::function<void(const std::atomic<bool>& stop)>& work);

/// The same with progress on a terminal; the work stops between two files.
PackingResult run_packing(const Tool& tool, PackingOptions& options,
                          const std::function<PackingResult()>& work);

/// Throws UsageError if `out` is inside the folder to pack: the next call would pack it too.
void refuse_out_inside(const std::filesystem::path& folder, const std::filesystem::path& out);

}  // namespace lockstep::pack
