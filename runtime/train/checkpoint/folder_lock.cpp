#include "runtime/train/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "common/environment.h"
#include "common/error.h"
#include "common/process.h"
#include "common/thread.h"
#include "common/units.h"
#include "runtime/train/checkpoint/reader.h"

namespace lockstep::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{50};  // between two looks at another holder's lock

/// When the process began; nullopt if it has ended.
std::optional<std::uint64_t> beginning_of(std::int64_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  std::istringstream fields(
      text.substr(std::min(text.size(), text.rfind(')') + 1)));  // the name may have spaces
  std::string field;
  for (int i = 3; i <= 22 && fields >> field; ++i) {
    if (i == 3 && (field == "Z" || field == "X")) return std::nullopt;
  }
  return std::strtoull(field.c_str(), nullptr, 10);
}

std::string machine_of_this_process() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  std::error_code ignored;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

std::string text_of_lock(const LockHolder& holder, std::uint64_t beats) {
  // The number of beats is the last one, so that the text only grows.
  return nlohmann::ordered_json{
             {"node", holder.node},   {"machine", holder.machine}, {"process", holder.process},
             {"began", holder.began}, {"job", holder.job},         {"run", holder.run},
             {"beats", beats}}
             .dump() +
         "\n";
}

/// nullopt for a lock that is being made.
std::optional<LockHolder> holder_in(const std::string& text) {
  try {
    const auto fields = nlohmann::json::parse(text);
    return LockHolder{.node = fields.at("node"),
                      .machine = fields.at("machine"),
                      .process = fields.at("process"),
                      .began = fields.at("began"),
                      .job = fields.at("job"),
                      .run = fields.at("run")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string name_of_holder(const std::optional<LockHolder>& holder) {
  if (!holder) return "another program";
  const std::string process = fmt::format("process {} on {}", holder->process, holder->node);
  return holder->job.empty() ? process : fmt::format("job {} ({})", holder->job, process);
}

}  // namespace

LockHolder LockHolder::here(const std::string& run) {
  return {.node = node_name(),
          .machine = machine_of_this_process(),
          .process = ::getpid(),
          .began = beginning_of(::getpid()).value_or(0),
          .job = environment::get_or("SLURM_JOB_ID", ""),
          .run = run};
}

FolderLock::FolderLock(FileSystem& system, const std::filesystem::path& folder, const LockHolder& mine,
                       FolderLockOptions options)
    : system_(system), path_(folder / ".lock"), mine_(mine), options_(std::move(options)) {
  acquire();
  thread_ = start_thread([this] { beat(); });
}

FolderLock::~FolderLock() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
  try {
    if (is_mine()) system_.unlink_if_there(path_);
  } catch (const Error&) {
    // The lock stays; this process will not be alive.
  }
}

bool FolderLock::create() {
  const FileCall call{.kind = FileCall::Kind::open,
                      .path = path_.c_str(),
                      .flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                      .mode = 0666};
  file_.reset(static_cast<int>(system_.call(call)));
  if (!file_) {
    if (errno == EEXIST) return false;
    fail_errno("cannot write into the folder of checkpoints {}", path_.parent_path().string());
  }
  try {
    write(0);
  } catch (...) {
    system_.unlink_if_there(path_);
    throw;
  }
  return true;
}

void FolderLock::acquire() {
  const auto begin = Clock::now();
  auto changed_at = begin;
  std::string seen;
  bool beats = false;
  bool said = false;
  while (!create()) {
    const auto text = read_if_there(system_, path_);
    if (const auto status = system_.status(path_); status && !S_ISREG(status->st_mode))
      fail("{} is not a file, so the folder of checkpoints cannot be locked: remove it", path_.string());
    if (!text) continue;
    beats = beats || (!seen.empty() && *text != seen);
    if (*text != seen) changed_at = Clock::now();
    seen = *text;
    const auto holder = holder_in(seen);
    const bool on_this_machine = holder && holder->machine == mine_.machine;
    if (on_this_machine ? beginning_of(holder->process) != holder->began
                        : Clock::now() - changed_at >= options_.stale) {
      take_over(seen);
      continue;
    }
    const bool same_job = holder && !mine_.job.empty() && holder->job == mine_.job;
    const auto waited = Clock::now() - begin;
    if ((on_this_machine || beats) && waited >= (same_job ? options_.wait : options_.grace)) {
      fail(
          "{} uses the folder of checkpoints {}: give each training a folder of its own, or wait for its end",
          name_of_holder(holder), path_.parent_path().string());
    }
    if ((same_job || waited >= options_.grace) && !std::exchange(said, true)) {
      fmt::print(stderr, "lockstep: {} is locked by {}: waiting for its end\n", path_.parent_path().string(),
                 name_of_holder(holder));
    }
    options_.waiting();
    std::this_thread::sleep_for(kLook);
  }
}

// Another process may take the lock over at the same time: it is renamed first, and given back if it is not the dead
// one's.
void FolderLock::take_over(const std::string& text) {
  const std::filesystem::path taken = path_.parent_path() / fmt::format(".lock.{}", mine_.run);
  try {
    system_.rename(path_, taken);
  } catch (const Error&) {
    if (system_.status(path_)) throw;
    return;
  }
  if (read_if_there(system_, taken) != text) {
    (void)system_.try_link(taken, path_);
  } else if (const auto holder = holder_in(text)) {
    dead_run_ = holder->run;
  }
  system_.unlink_if_there(taken);
}

bool FolderLock::is_mine() {
  struct stat mine {};
  const auto named = system_.status(path_);
  return named && ::fstat(file_.get(), &mine) == 0 && mine.st_ino == named->st_ino &&
         mine.st_dev == named->st_dev;
}

void FolderLock::write(std::uint64_t beats) {
  const std::string text = text_of_lock(mine_, beats);
  system_.write_at(file_.get(), std::as_bytes(std::span(text)), 0, path_);
  system_.sync(file_.get(), path_);
}

void FolderLock::beat() {
  std::uint64_t beats = 0;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, options_.beat, [this] { return ending_; })) {
    lock.unlock();
    try {
      if (!is_mine()) lost_ = true;
      write(++beats);
    } catch (const Error&) {
      // The next beat tries again.
    }
    lock.lock();
  }
}

}  // namespace lockstep::checkpoint
