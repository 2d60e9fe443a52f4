#include "staging/pack/tool/packing_verb.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iostream>
#include <string_view>

#include "common/error.h"
#include "common/progress.h"
#include "common/units.h"
#include "staging/pack/write/file_list.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> stop{false};
std::atomic<int> signal_number{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

std::atomic<unsigned> seconds_to_stop{0};

/// Ends the process when the work does not stop because a thread is blocked in the kernel by a file system
/// that does not answer. The files on disk are as after a kill.
void end_at_once(int /*alarm*/) {
  constexpr std::string_view kLine =
      "lockstep-pack: stopped while a file system does not answer: run the command again to continue\n";
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  ::signal(signal_number, SIG_DFL);
  ::kill(::getpid(), signal_number);
}

/// While this object lives, the first SIGINT, SIGTERM or SIGHUP sets `stop` and ends the process after
/// `timeout` at the latest. A second signal ends the process at once.
class StopOnSignals {
 public:
  explicit StopOnSignals(std::chrono::seconds timeout) {
    seconds_to_stop = static_cast<unsigned>(timeout.count());
    ::signal(SIGALRM, end_at_once);
    struct sigaction action {};
    action.sa_handler = [](int number) {
      signal_number = number;
      stop = true;
      ::alarm(seconds_to_stop);
    };
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN)
        ::sigaction(kSignals[i], &action, nullptr);  // keep nohup's SIG_IGN
    }
  }
  ~StopOnSignals() {
    ::alarm(0);
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
                  "Pack only files whose path or name matches this pattern (may be repeated)");
}

std::uint64_t parse_shard_size(const std::string& text) {
  const std::uint64_t bytes = parse_bytes(text);
  if (bytes == 0) fail_usage("--shard-size must be at least 1 byte, not {}", text);
  return bytes;
}

void list_files(const PackingArguments& arguments, PackingOptions& options) {
  options.shard_bytes = parse_shard_size(arguments.shard_size);
  options.threads = arguments.threads;
  if (arguments.source == "-") {
    options.folder = ".";
    options.files = files_listed(std::cin, arguments.filters);
  } else {
    options.folder = arguments.source;
    options.files = files_below(options.folder, arguments.filters);
  }
}

void run_until_stopped(const Tool& tool, const std::function<void(const std::atomic<bool>& stop)>& work,
                       std::chrono::seconds timeout) {
  const StopOnSignals signals(timeout);
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
