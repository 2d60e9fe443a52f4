#include "runtime/train/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <utility>

#include "common/environment.h"
#include "common/error.h"
#include "common/process.h"
#include "common/units.h"
#include "runtime/train/checkpoint/reader.h"

namespace lockstep::checkpoint {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LockHolder, node, machine, process, began, cluster, job, step, restart,
                                   run)

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

/// nullopt for a file that is not a lock of this version.
std::optional<LockHolder> holder_in(const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<LockHolder>();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::string slurm_name(const LockHolder& holder) {
  return holder.step.empty() ? holder.job : fmt::format("{}.{}", holder.job, holder.step);
}

std::string name_of_holder(const std::optional<LockHolder>& holder) {
  if (!holder) return "another program";
  const std::string process = fmt::format("process {} on {}", holder->process, holder->node);
  if (holder->job.empty()) return process;
  return fmt::format("{} {} ({})", holder->step.empty() ? "job" : "step", slurm_name(*holder), process);
}

/// Whether Slurm still knows the holder's step; nullopt if it gives no answer.
std::optional<bool> ask_slurm(const LockHolder& holder) {
  try {
    const auto answer = run_process({"squeue", "--noheader", "--format=%i",
                                     (holder.step.empty() ? "--jobs=" : "--steps=") + slurm_name(holder)});
    if (answer.exit_code == 0) return answer.output.find_first_not_of(" \n") != std::string::npos;
    if (answer.error.find("Invalid job id") != std::string::npos) return false;
  } catch (const Error&) {
    // There is no squeue.
  }
  return std::nullopt;
}

}  // namespace

LockHolder LockHolder::here(const std::string& run) {
  return {.node = node_name(),
          .machine = machine_of_this_process(),
          .process = ::getpid(),
          .began = beginning_of(::getpid()).value_or(0),
          .cluster = environment::get_or("SLURM_CLUSTER_NAME", ""),
          .job = environment::get_or("SLURM_JOB_ID", ""),
          .step = environment::get_or("SLURM_STEP_ID", ""),
          .restart = environment::get_or("SLURM_RESTART_COUNT", "0"),
          .run = run};
}

FolderLock::FolderLock(FileSystem& system, const std::filesystem::path& folder, const LockHolder& mine,
                       FolderLockOptions options)
    : system_(system),
      path_(folder / ".lock"),
      own_(folder / fmt::format(".lock.{}", mine.run)),
      mine_(mine),
      options_(std::move(options)) {
  const FileCall call{.kind = FileCall::Kind::open,
                      .path = own_.c_str(),
                      .flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                      .mode = 0666};
  file_.reset(static_cast<int>(system_.call(call)));
  if (!file_) fail_errno("cannot write into the folder of checkpoints {}", folder.string());
  try {
    const std::string text = nlohmann::json(mine_).dump() + "\n";
    system_.write_at(file_.get(), std::as_bytes(std::span(text)), 0, own_);
    system_.sync(file_.get(), own_);
    acquire();
  } catch (...) {
    system_.unlink_if_there(own_);
    throw;
  }
  system_.unlink_if_there(own_);  // `.lock` is a second name of the file
}

FolderLock::~FolderLock() {
  try {
    if (!lost()) system_.unlink_if_there(path_);
  } catch (const Error&) {
    // The lock stays; this process will not be alive.
  }
}

// NFS may answer that a name is taken though the link was made, so the number of names decides.
bool FolderLock::link(const std::filesystem::path& lock) {
  const FileCall call{.kind = FileCall::Kind::link, .path = own_.c_str(), .to = lock.c_str()};
  const bool made = system_.call(call) == 0;
  const int error = errno;
  const auto own = system_.status(own_);
  if (!own) fail("{} was removed while it was made the lock of the folder of checkpoints", own_.string());
  if (own->st_nlink == 2 || is_mine(lock)) return true;
  if (!made && error != EEXIST) {
    errno = error;
    fail_errno("cannot lock the folder of checkpoints {}", path_.parent_path().string());
  }
  return false;
}

// One look at the lock, which is taken if it is free or its holder is dead. Returns who has it otherwise.
FolderLock::Look FolderLock::try_to_take(const std::filesystem::path& lock) {
  if (link(lock)) return {.taken = true};
  const auto text = read_if_there(system_, lock);
  if (const auto status = system_.status(lock); status && !S_ISREG(status->st_mode))
    fail("{} is not a file, so the folder of checkpoints cannot be locked: remove it", lock.string());
  if (!text) return {};
  const auto holder = holder_in(*text);
  const auto alive = holder ? lives(*holder) : std::nullopt;
  if (alive.value_or(!options_.force)) return {.is_held = true, .alive = alive, .holder = holder};
  // Another process may have found the same. Only the one that has the second lock, which is taken in the same way, replaces
  // the first: so nobody replaces the lock of a process that lives.
  const std::filesystem::path next = lock.string() + ".next";
  const Look look = try_to_take(next);
  if (!look.taken) return look;
  if (read_if_there(system_, lock) != text) {
    system_.unlink_if_there(next);
    return {};
  }
  system_.rename(next, lock);
  if (holder) {
    if (lock == path_) dead_run_ = holder->run;
    system_.unlink_if_there(path_.parent_path() / fmt::format(".lock.{}", holder->run));
  }
  return {.taken = true};
}

void FolderLock::acquire() {
  const auto begin = Clock::now();
  bool said = false;
  for (Look look; !(look = try_to_take(path_)).taken;) {
    if (!look.is_held) continue;
    const bool same_job = look.alive && !mine_.job.empty() && look.holder->job == mine_.job;
    const auto waited = Clock::now() - begin;
    if (waited >= (same_job ? options_.wait : options_.grace)) {
      fail(
          "{} uses the folder of checkpoints {}: give each training a folder of its own, or wait for its end{} (docs/users/checkpoints.md)",
          name_of_holder(look.holder), path_.parent_path().string(),
          look.alive ? "" : "; if it has ended, set CheckpointerOptions::force once");
    }
    if ((same_job || waited >= options_.grace) && !std::exchange(said, true)) {
      fmt::print(stderr, "lockstep: {} is locked by {}: waiting for its end\n", path_.parent_path().string(),
                 name_of_holder(look.holder));
    }
    options_.waiting();
    std::this_thread::sleep_for(kLook);
  }
}

// nullopt if it cannot be known.
std::optional<bool> FolderLock::lives(const LockHolder& holder) {
  if (holder.machine == mine_.machine) return beginning_of(holder.process) == holder.began;
  if (holder.job.empty() || holder.cluster != mine_.cluster) return std::nullopt;
  // Slurm starts a job again when its earlier run has ended.
  if (holder.job == mine_.job && holder.restart != mine_.restart) return false;
  if (asked_run_ != holder.run || Clock::now() - asked_at_ >= options_.ask) {
    slurm_knows_ = ask_slurm(holder);
    asked_run_ = holder.run;
    asked_at_ = Clock::now();
  }
  return slurm_knows_;
}

bool FolderLock::is_mine(const std::filesystem::path& lock) const {
  struct stat mine {};
  const auto named = system_.status(lock);
  return named && ::fstat(file_.get(), &mine) == 0 && mine.st_ino == named->st_ino &&
         mine.st_dev == named->st_dev;
}

}  // namespace lockstep::checkpoint
