#include <fcntl.h>
#include <grp.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <sys/file.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/leaf/cpu_list.h"
#include "common/leaf/network.h"
#include "common/leaf/text.h"
#include "common/leaf/unique_fd.h"
#include "plugin/spank/contexts/context.h"
#include "plugin/spank/pinning/pinning.h"
#include "plugin/spank/process/folder.h"
#include "plugin/spank/process/node_tasks.h"
#include "plugin/spank/process/process.h"
#include "plugin/spank/process/report.h"
#include "plugin/spank/process/step_folders.h"
#include "plugin/spank/staging/staging.h"

namespace lockstep::spank {

std::string job_variable(spank_t spank, const char* name) {
  std::vector<char> value(4096);
  for (;;) {
    const spank_err_t error = spank_getenv(spank, name, value.data(), static_cast<int>(value.size()));
    if (error == ESPANK_SUCCESS) return value.data();
    if (error != ESPANK_NOSPACE || value.size() > (1U << 20U)) return "";
    value.resize(value.size() * 2);
  }
}

namespace remote {
namespace {

constexpr std::uint32_t kBatchStep = 0xfffffffbU;
constexpr std::uint32_t kExternStep = 0xfffffffcU;
constexpr std::uint32_t kInteractiveStep = 0xfffffffaU;

// The state that slurmstepd prepares as root for the tasks that it forks.
struct PreparedStep {
  StepOnNode step;
  Settings settings;
  std::optional<SrunLink> link;
  std::string refusal;          ///< why no task may run, or ""
  std::string metrics_warning;  ///< why the step times will not be seen, and what to do; or ""
  std::unique_ptr<NodeTasks> tasks;
  bool pins = false;
  bool bound_by_hand = false;          ///< --cpu-bind chooses the tasks' CPUs
  std::uint32_t granted_cpus = 0;      ///< number of CPUs that the step has on this node
  int cpus_per_task = 0;               ///< value of --cpus-per-task, or 0
  bool ignored_cpus_per_task = false;  ///< it is the job's, which srun has not taken over
  std::optional<StepLease> lease;      ///< held until the step ends
  std::vector<UniqueFd> marks;  ///< of the step's folders (step_folders.h), held until this process ends
  UniqueFd lifetime;            ///< write end of StepOnNode::lifetime_fd, closed when all tasks have ended
  std::uint32_t ended_tasks = 0;
};

std::unique_ptr<PreparedStep>& prepared_step() {
  static std::unique_ptr<PreparedStep> instance;
  return instance;
}

// The failure in slurmstepd before the tasks, or "".
std::string& failure() {
  static std::string instance;
  return instance;
}

template <typename T>
T item(spank_t spank, spank_item_t which) {
  T value{};
  spank_get_item(spank, which, &value);
  return value;
}

std::string step_name(std::uint32_t step) {
  if (step == kBatchStep) return "batch";
  if (step == kInteractiveStep) return "interactive";
  return std::to_string(step);
}

std::string this_node(spank_t spank) {
  const std::string name = job_variable(spank, "SLURMD_NODENAME");
  return name.empty() ? host_name() : name;
}

std::string name_of(const StepOnNode& step) {
  return std::to_string(step.job) + "." + step.step;
}

StepOnNode identify(spank_t spank) {
  StepOnNode step;
  const auto id = item<std::uint32_t>(spank, S_JOB_STEPID);
  step.job = item<std::uint32_t>(spank, S_JOB_ID);
  step.step = step_name(id);
  step.uid = item<uid_t>(spank, S_JOB_UID);
  if (id != kBatchStep && id != kInteractiveStep) {
    step.node_id = item<std::uint32_t>(spank, S_JOB_NODEID);
    step.nodes = std::max<std::uint32_t>(1, item<std::uint32_t>(spank, S_JOB_NNODES));
  }
  return step;
}

// Only in the task's process: earlier, these variables are those of the command that called srun, which may
// be a task of another step on another node.
void identify_by_variables(spank_t spank, StepOnNode& step) {
  step.node = this_node(spank);
  step.restart = to_number<std::uint32_t>(job_variable(spank, "SLURM_RESTART_COUNT")).value_or(0);
  if (step.nodes == 1) return;
  step.node_list = job_variable(spank, "SLURM_STEP_NODELIST");
  // The components of a heterogeneous step in an ordinary job have the same numbers and node lists, but srun
  // launches each from a different port.
  step.component = job_variable(spank, "SLURM_STEP_LAUNCHER_PORT");
  // As the nodes see it.
  const std::string srun = job_variable(spank, "SLURM_LAUNCH_NODE_IPADDR");
  if (!srun.empty()) step.srun_hosts = {srun};
}

// From 26.05 on, Slurm asks for a job by the number of a step.
template <typename Job>
int load_job(int (*load)(job_info_msg_t**, Job, std::uint16_t), job_info_msg_t** found, std::uint32_t job) {
  if constexpr (std::is_integral_v<Job>) {
    return load(found, job, SHOW_ALL);
  } else {
    Job number{};
    number.job_id = job;
    number.step_id = number.step_het_comp = NO_VAL;
    return load(found, number, SHOW_ALL);
  }
}

// Only slurmctld knows the job's partition for certain: SPANK does not have it, and the variables of a step are those that the
// user's srun has sent.
std::string partition_of(std::uint32_t job) {
  job_info_msg_t* found = nullptr;
  if (load_job(&slurm_load_job, &found, job) != SLURM_SUCCESS) {
    throw Error("cannot ask slurmctld for the job's partition, which has settings in lockstep.conf: " +
                std::string(slurm_strerror(errno)) + "; try again");
  }
  const std::unique_ptr<job_info_msg_t, void (*)(job_info_msg_t*)> owner(found, &slurm_free_job_info_msg);
  // All components of a heterogeneous job, or all tasks of an array, may be there.
  for (std::uint32_t i = 0; i < found->record_count; ++i) {
    const slurm_job_info_t& each = found->job_array[i];
    if (each.job_id == job && each.partition != nullptr) return each.partition;
  }
  throw Error("slurmctld does not know the partition of job " + std::to_string(job) +
              ", which has settings in lockstep.conf");
}

// Under --export=NONE the batch step's options arrive empty, but its variables contain sbatch's values.
void find_options_of_batch(spank_t spank) {
  for (const OptionRow& row : option_table()) {
    auto& value = invocation().values.at(static_cast<std::size_t>(row.option));
    if (value) continue;
    const std::string text = job_variable(spank, passed_variable(option_variable(row.option)).c_str());
    if (!text.empty() && text != "(null)") value = text;
  }
}

void make_store(PreparedStep& step, gid_t gid) {
  const std::string folder = tier_folder(invocation().config, step.settings);
  if (folder.empty()) {
    step.step.problem =
        "--stage: there is no cache, because 'cache' is not set for this partition in lockstep.conf";
    return;
  }
  step.step.store = folder + "/" + std::to_string(step.step.uid);
  try {
    const bool disk = step.settings.tier == "disk";
    const Folder stores = Folder::open_cache(folder, disk && invocation().config.must_be_mount);
    stores.own(std::to_string(step.step.uid), step.step.uid, gid, 0700);
  } catch (const Error& error) {
    step.step.problem = error.what();
  }
}

// For a step that may read from its source if this node's cache is unusable.
void make_links(PreparedStep& step, gid_t gid) {
  try {
    // Of this job, so that nothing of the user's stays after it. Nobody else may list the numbers of jobs.
    const Folder links = Folder::open_root(invocation().config.links, true);
    const Folder of_job = links.own("jobs", 0, 0, 0711).own(std::to_string(step.step.job), 0, 0, 0711);
    step.marks.push_back(mark_running(of_job, name_of(step.step)));
    step.step.links = of_job.own(std::to_string(step.step.uid), step.step.uid, gid, 0700).path();
  } catch (const Error& error) {
    log(error.what());  // the job's line is about the cache
  }
}

// slurmstepd and, until exec, the tasks have the write end; the staging helper has the read end. So the helper notices
// the end of the tasks with any ProctrackType.
void make_lifetime_pipe(PreparedStep& step) {
  try {
    Pipe pipe;
    step.step.lifetime_fd = pipe.read_end.release();
    step.lifetime = std::move(pipe.write_end);
  } catch (const Error& error) {
    step.step.problem = error.what();
  }
}

// The exporter holds a shared lock on the folder of the records (exporters/node/collector.h).
bool exporter_runs(const Folder& records) {
  // A descriptor with O_PATH cannot be locked.
  const UniqueFd folder(::openat(records.fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return !folder || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0;
}

void make_record_folder(PreparedStep& step) {
  const Config& config = invocation().config;
  std::vector<char> buffer(4096);
  group entry{};
  group* found = nullptr;
  // A group with many members needs more.
  while (::getgrnam_r(config.group.c_str(), &entry, buffer.data(), buffer.size(), &found) == ERANGE &&
         buffer.size() < (1U << 20U)) {
    buffer.resize(2 * buffer.size());
  }
  if (found == nullptr) {
    step.metrics_warning =
        "--metrics has no effect: this node has no group '" + config.group +
        "', which may read the step times: ask the administrator to make it (docs: monitoring)";
    return;
  }
  try {
    const bool made_before = ::access(config.records.c_str(), F_OK) == 0;
    const Folder records = Folder::open_root(config.records, true);
    // The exporter must list the jobs in it; other users must not.
    const Folder user = records.own(std::to_string(step.step.uid), 0, entry.gr_gid, 0751);
    const std::string name = name_of(step.step);
    step.marks.push_back(mark_running(user, name));
    step.step.record = user.own(name, step.step.uid, entry.gr_gid, 02750).path();
    // An exporter that started before the folder existed finds it at its next scrape.
    if (made_before && step.step.node_id == 0 && !exporter_runs(records)) {
      step.metrics_warning =
          "no lockstep-exporter runs on this node, so the step times will not be in Prometheus; lockstep-report shows them";
    }
  } catch (const Error& error) {
    step.metrics_warning = std::string("--metrics has no effect: ") + error.what();
  }
}

void set(spank_t spank, const char* name, const std::string& value, bool replace) {
  if (!value.empty()) spank_setenv(spank, name, value.c_str(), replace ? 1 : 0);
}

void set_task_variables(spank_t spank, const TaskPlacement& placement) {
  set(spank, "LOCKSTEP_CPUS", placement.cpus, true);
  set(spank, "LOCKSTEP_WORKER_CPUS", placement.workers, true);
  set(spank, "LOCKSTEP_NUMA", placement.numa, true);
  set(spank, "LOCKSTEP_GPUS", placement.gpus, true);
  if (placement.threads > 0) set(spank, "OMP_NUM_THREADS", std::to_string(placement.threads), false);
  set(spank, "OMP_PLACES", placement.places, false);
  set(spank, "OMP_PROC_BIND", "close", false);
}

// Reads the task's variables, which Slurm sets for each task before task_init.
void record_grant(spank_t spank, PreparedStep& step, std::uint32_t task) {
  const std::string cpus_per_task = job_variable(spank, "SLURM_CPUS_PER_TASK");
  std::from_chars(cpus_per_task.data(), cpus_per_task.data() + cpus_per_task.size(), step.cpus_per_task);
  // Before Slurm 24.11, srun ignores the option of sbatch and salloc, and leaves the variable as it is.
  const auto granted = item<std::uint32_t>(spank, S_STEP_CPUS_PER_TASK);
  step.ignored_cpus_per_task =
      granted > 0 && granted < static_cast<std::uint32_t>(std::max(0, step.cpus_per_task));
  const std::string of_step = job_variable(spank, "SLURM_STEP_GPUS");
  for (const char* const name : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}) {
    std::vector<std::string> gpus = gpus_of_task(job_variable(spank, name), of_step);
    for (std::string& gpu : gpus) gpu = pci_address(gpu);
    if (!gpus.empty()) return step.tasks->record_gpus(task, join(gpus, ","));
  }
}

// The CPUs for the staging helper; "" if it keeps those of the task that starts it.
std::string cpus_for_staging(PreparedStep& step) {
  const std::vector<int> whole = step_cpus(step.granted_cpus);
  if (whole.empty() || step.settings.mode == "block") return format_cpu_list(whole);
  std::vector<int> of_tasks = step.tasks->wait_for_cpus(kSecondsForTasks);
  std::vector<int> computing = of_tasks;
  if (!step.tasks->placement(0).cpus.empty()) {
    of_tasks.clear();
    computing.clear();
    const auto add = [](std::vector<int>& all, const std::string& list) {
      const std::vector<int> cpus = parse_cpu_list(list);
      all.insert(all.end(), cpus.begin(), cpus.end());
    };
    for (std::uint32_t task = 0; task < step.tasks->size(); ++task) {
      const TaskPlacement placement = step.tasks->placement(task);
      add(computing, placement.cpus);
      add(of_tasks, placement.cpus);
      add(of_tasks, placement.workers);
    }
  }
  return format_cpu_list(spare_cpus(whole, of_tasks, computing));
}

void report_ignored_cpus_per_task(PreparedStep& step) {
  if (!step.ignored_cpus_per_task || step.step.node_id != 0) return;
  const std::size_t cpus = step.tasks->wait_for_cpus(kSecondsForTasks).size();
  if (cpus >= static_cast<std::size_t>(step.cpus_per_task) * step.tasks->size()) return;
  const std::string option = "--cpus-per-task=" + std::to_string(step.cpus_per_task);
  say(step.step.node + ": the step's tasks have " + std::to_string(cpus) +
      " CPUs in all, because srun has not taken over the job's " + option + ": give " + option +
      " to srun too, or export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK");
}

// Runs once for all tasks of the node.
WorkResult work_for_node(PreparedStep& step) {
  if (step.pins && step.bound_by_hand) {
    if (step.step.node_id == 0) say("--pin has no effect: --cpu-bind chooses the CPUs of this step's tasks");
  } else if (step.pins) {
    report_ignored_cpus_per_task(step);
    try {
      plan_node(*step.tasks, invocation().config, step.settings.pin, step.step.node, step.cpus_per_task);
    } catch (const Error& error) {
      say(step.step.node + ": tasks keep the CPUs that Slurm gave them: " + error.what());
    }
  }
  if (!step.metrics_warning.empty()) say(step.step.node + ": " + step.metrics_warning);
  if (step.settings.sources.empty()) return WorkResult::succeeded;
  step.step.cpus = cpus_for_staging(step);
  return stage(step.step, invocation().config, step.settings, step.link ? &*step.link : nullptr);
}

// Removes the variables of an outer step: of the batch script, or of the task that called srun or sbatch. The
// user's own values stay.
void remove_outer_variables(spank_t spank, const StepOnNode& step) {
  if (is_data_folder(job_variable(spank, "LOCKSTEP_DATA"), step.uid)) spank_unsetenv(spank, "LOCKSTEP_DATA");
  if (is_record_folder(job_variable(spank, "LOCKSTEP_RECORD"), invocation().config.records, step.uid)) {
    spank_unsetenv(spank, "LOCKSTEP_RECORD");
  }
  if (!invocation().values.at(static_cast<std::size_t>(Option::pin))) return;
  const auto variable = [&](const char* name) { return job_variable(spank, name); };
  for (const char* const name : outer_openmp_variables(variable)) spank_unsetenv(spank, name);
  for (const char* const name : {"LOCKSTEP_CPUS", "LOCKSTEP_WORKER_CPUS", "LOCKSTEP_NUMA", "LOCKSTEP_GPUS"}) {
    spank_unsetenv(spank, name);
  }
}

// Of the signals by which Slurm and users end a step: since Slurm 24.11 at the latest, the task has slurmstepd's handlers
// until its program starts, and a task that stages would not notice them.
void restore_signals() {
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM}) {
    ::signal(signal, SIG_DFL);
  }
}

void pin_task(spank_t spank, const PreparedStep& step, std::uint32_t task) {
  const TaskPlacement placement = step.tasks->placement(task);
  if (placement.cpus.empty()) return;
  try {
    if (step.settings.pin.memory == "interleave") interleave_memory(parse_cpu_list(placement.numa));
    bind(placement);
    set_task_variables(spank, placement);
  } catch (const Error& error) {
    say(step.step.node + ": task " + std::to_string(task) +
        " keeps the CPUs that Slurm gave it: " + error.what());
  }
}

}  // namespace

void init(spank_t spank, int argc, char** argv) {
  // The variable comes from the user's srun. It is good enough for the defaults of steps without our options.
  load_config(argc, argv, job_variable(spank, "SLURM_JOB_PARTITION"));
  register_options(spank, true);
}

void init_post_opt(spank_t spank, int argc, char** argv) {
  const auto id = item<std::uint32_t>(spank, S_JOB_STEPID);
  if (id == kExternStep) return;
  const bool for_tasks = id != kBatchStep && id != kInteractiveStep;
  if (!for_tasks) find_options_of_batch(spank);
  auto step = std::make_unique<PreparedStep>();
  try {
    if (invocation().has_options() && !invocation().config.partitions.empty())
      load_config(argc, argv, partition_of(item<std::uint32_t>(spank, S_JOB_ID)));
    if (!invocation().config.enabled) return;
    if (!invocation().has_options() && !invocation().config_error.empty()) return;
    step->settings = invocation().settings();
    if (invocation().link && !invocation().link->empty()) step->link = SrunLink::decode(*invocation().link);
  } catch (const Error& error) {
    step->refusal = error.what();
  }
  // A batch script is not pinned: its commands would inherit its CPUs and its OMP_ variables.
  step->pins = for_tasks && step->settings.pin.on();
  if (id == kBatchStep && step->settings.batch == "no") step->settings.sources.clear();
  const bool stages = !step->settings.sources.empty();
  // An option that is off still removes the outer step's variables.
  if (!stages && !step->pins && step->settings.metrics == "off" && step->refusal.empty() &&
      !invocation().has_options())
    return;
  step->step = identify(spank);
  step->granted_cpus = item<std::uint16_t>(spank, S_JOB_NCPUS);
  if (stages) make_store(*step, item<gid_t>(spank, S_JOB_GID));
  if (stages && step->settings.on_error == "source") make_links(*step, item<gid_t>(spank, S_JOB_GID));
  if (stages && step->settings.mode == "background") make_lifetime_pipe(*step);
  if (step->settings.metrics == "on") make_record_folder(*step);
  step->tasks = std::make_unique<NodeTasks>(
      std::max<std::uint32_t>(1, item<std::uint32_t>(spank, S_JOB_LOCAL_TASK_COUNT)));
  prepared_step() = std::move(step);
}

void user_init() {
  if (!prepared_step() || prepared_step()->settings.sources.empty()) return;
  StepOnNode& step = prepared_step()->step;
  try {
    if (step.problem.empty()) {
      prepared_step()->lease.emplace(StepLease::take(step.store, name_of(step)));
      step.lease = prepared_step()->lease->path();
    }
  } catch (const Error& error) {
    step.problem = error.what();
  }
  if (!step.problem.empty() && !step.links.empty()) step.store = step.links;
}

void task_exit() {
  if (!prepared_step() || ++prepared_step()->ended_tasks < prepared_step()->tasks->size()) return;
  prepared_step()->lifetime.reset();
}

void exit() {
  if (prepared_step() && prepared_step()->lease) prepared_step()->lease->remove_name();
}

void refuse(const std::string& what) {
  failure() = what;
}

void end_task_if_needed(spank_t spank, const std::string& what) {
  bool needed = invocation().stages();
  if (!invocation().has_options()) {
    const std::string by_srun = job_variable(spank, kStages);
    const std::string by_sbatch =
        job_variable(spank, passed_variable(option_variable(Option::stage)).c_str());
    needed = by_srun.empty() ? !by_sbatch.empty() && by_sbatch != "none" : by_srun == kYes;
  }
  spank_unsetenv(spank, kStages);
  if (!needed) return log(what);
  say(this_node(spank) + ": " + what + "; the task ends because its data cannot be staged");
  ::_exit(kStagingFailed);
}

void task_init(spank_t spank) {
  // srun of Slurm 24.11 has copied its environment before init_post_opt removed the key from it.
  spank_unsetenv(spank, link_variable().c_str());
  if (!failure().empty()) return end_task_if_needed(spank, failure());
  const bool bound_by_hand = job_variable(spank, kBoundByHand) == kYes;
  spank_unsetenv(spank, kBoundByHand);
  spank_unsetenv(spank, kStages);
  if (!prepared_step()) return;
  restore_signals();
  PreparedStep& step = *prepared_step();
  identify_by_variables(spank, step.step);
  const auto task = static_cast<std::uint32_t>(item<int>(spank, S_TASK_ID));
  if (step.pins) record_grant(spank, step, task);
  step.bound_by_hand = bound_by_hand;
  try {
    step.tasks->record_cpus(task, cpus_of_this_thread());
  } catch (const Error& error) {  // pinning then reports that this task did not start
    log(error.what());
  }
  const WorkResult result = step.tasks->run_once([&] {
    try {
      if (step.refusal.empty()) return work_for_node(step);
      say(step.step.node + ": " + step.refusal);
    } catch (const std::exception& error) {  // also out of memory: no task may run without its data
      say(step.step.node + ": " + error.what());
    }
    return WorkResult::failed;
  });
  // The step is being cancelled, and this task's signal is on its way. After any other end slurmstepd would send a
  // message to srun, which may have ended, and wait seconds for an answer.
  if (result == WorkResult::killed) ::raise(SIGTERM);
  // Slurm would ignore a return value, or let the other nodes' tasks run on without these.
  if (result != WorkResult::succeeded) ::_exit(kStagingFailed);
  remove_outer_variables(spank, step.step);
  if (step.pins) pin_task(spank, step, task);
  if (!step.settings.sources.empty()) set(spank, "LOCKSTEP_DATA", data_folder(step.step), true);
  set(spank, "LOCKSTEP_RECORD", step.step.record, true);
}

}  // namespace remote
}  // namespace lockstep::spank
