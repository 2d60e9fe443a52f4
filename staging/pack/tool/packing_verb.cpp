#include "staging/pack/tool/packing_verb.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <iostream>

#include "common/error.h"
#include "common/progress.h"
#include "common/units.h"
#include "staging/pack/file_kind.h"
#include "staging/pack/tar_members.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> stop{false};
std::atomic<int> signal_number{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

/// While this object lives, the first SIGINT, SIGTERM or SIGHUP sets `stop`. A second signal ends the process at once, also
/// while a thread is blocked by a file system that does not answer. The files on disk are as after a kill.
class StopOnSignals {
 public:
  StopOnSignals() {
    struct sigaction action {};
    action.sa_handler = [](int number) {
      signal_number = number;
      stop = true;
    };
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN)
        ::sigaction(kSignals[i], &action, nullptr);  // keep nohup's SIG_IGN
    }
  }
  ~StopOnSignals() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  StopOnSignals(const StopOnSignals&) = delete;
  StopOnSignals& operator=(const StopOnSignals&) = delete;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[std::size(kSignals)]{};
};

/// Ends the process by the signal, so that a loop of the shell ends too.
void end_by_signal() {
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
}

/// A folder of tar shards is packed already. A pack of them would have a shard as each sample.
void refuse_tars(const PackingOptions& options, const std::vector<std::string>& filters) {
  if (!filters.empty() || options.files.empty() ||
      !std::all_of(options.files.begin(), options.files.end(),
                   [](const std::string& file) { return is_tar_name(file); }))
    return;
  fail("{} holds tar files: {}; to pack each of them as a sample, add --filter '*'", options.folder.string(),
       advice_for_folder(options.folder, options.files));
}

}  // namespace

void add_packing_options(CLI::App& verb, PackingArguments& arguments) {
  verb.add_option("source", arguments.source,
                  "Folder to pack, or - to read a list of relative paths from standard input")
      ->required()
      ->check(Tool::named());
  verb.add_option("--shard-size", arguments.shard_size,
                  "Largest size of a shard; a larger sample gets its own shard")
      ->capture_default_str();
  verb.add_option("--threads", arguments.threads, "Threads that open and read files; 0: chosen automatically")
      ->check(CLI::Range(0, 256));
  verb.add_option("--filter", arguments.filters,
                  "Pack only files whose path or name matches this pattern (may be repeated)")
      ->allow_extra_args(false);
}

void add_leave_out(CLI::App& verb, OpenOptions& options) {
  verb.add_option("--leave-out", options.leave_out,
                  "For LMDB: a key that is not a sample, such as length or '__*__' (may be repeated)")
      ->type_name("KEY")
      ->allow_extra_args(false);
}

std::uint64_t parse_shard_size(const std::string& text) {
  const std::uint64_t bytes = parse_bytes(text);
  if (bytes == 0) fail_usage("--shard-size must be at least 1 byte, not {}", text);
  return bytes;
}

StrayFiles list_files(const PackingArguments& arguments, PackingOptions& options) {
  StrayFiles stray;
  options.shard_bytes = parse_shard_size(arguments.shard_size);
  options.threads = arguments.threads;
  if (arguments.source == "-") {
    options.folder = ".";
    options.files = files_listed(std::cin, arguments.filters);
  } else {
    options.folder = arguments.source;
    options.files = files_below(options.folder, arguments.filters, &stray);
    refuse_tars(options, arguments.filters);
  }
  return stray;
}

std::string joined_notes(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += "; " + note;
  return text;
}

void run_until_stopped(const Tool& tool, const std::function<void(const std::atomic<bool>& stop)>& work) {
  const StopOnSignals signals;
  std::string stopped;
  try {
    work(stop);
    return;
  } catch (const Stopped& error) {
    stopped = error.what();
  }
  tool.say(stopped);
  std::fflush(stderr);
  end_by_signal();
  fail("{}", stopped);  // reached if the signal is blocked
}

PackingResult run_packing(const Tool& tool, PackingOptions& options,
                          const std::function<PackingResult()>& work) {
  options.notice = [&tool](const std::string& line) { tool.say(line); };
  PackingResult result;
  run_until_stopped(tool, [&](const std::atomic<bool>& asked) {
    options.stop = &asked;
    Progress progress("packing files:", options.files.size(), Progress::Unit::things);
    options.progress = [&](std::size_t files, std::uint64_t) { progress.update(files); };
    result = work();
  });
  return result;
}

void refuse_out_inside(const fs::path& folder, const fs::path& out) {
  const fs::path inside =
      fs::weakly_canonical(fs::absolute(out)).lexically_relative(fs::weakly_canonical(folder));
  if (!inside.empty() && *inside.begin() != "..")
    fail_usage("{} is inside the folder to pack, {}: name a folder outside it", out.string(),
               folder.string());
}

}  // namespace lockstep::pack
