// What create and append do alike on the command line: their options, progress, and a clean end by a signal.
//
// Threads: main's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/tool.h"
#include "staging/pack/write/packing.h"

namespace lockstep::pack {

struct PackingArguments {
  std::string source;
  std::string shard_size = "256M";
  int threads = 0;
  std::vector<std::string> filters;
};

void add_packing_options(CLI::App& verb, PackingArguments& arguments);

/// "256M" in bytes. Throws UsageError for what is no size, or none.
std::uint64_t parse_shard_size(const std::string& text);

/// Lists the files: those below the source, or those named on standard input.
void list_files(const PackingArguments& arguments, PackingOptions& options);

/// Does the work. SIGINT, SIGTERM and SIGHUP set `stop`; when the work throws Stopped then, that is printed,
/// and the process ends by that signal. A second signal ends it at once, and so does `patience`, where the
/// work hangs in a file system.
void run_until_stopped(const Tool& tool, const std::function<void(const std::atomic<bool>& stop)>& work,
                       std::chrono::seconds patience = std::chrono::seconds(10));

/// So, with progress on a terminal; stops between two files.
PackingResult run_packing(const Tool& tool, PackingOptions& options,
                          const std::function<PackingResult()>& work);

/// Throws UsageError where `out` lies inside the folder to pack: it would be packed itself the next time.
void refuse_out_inside(const std::filesystem::path& folder, const std::filesystem::path& out);

}  // namespace lockstep::pack
