#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <memory>
#include <optional>
#include <utility>

#include "plugin/spank/context.h"
#include "plugin/spank/folder.h"
#include "plugin/spank/given.h"
#include "plugin/spank/gpus.h"
#include "plugin/spank/helper_cpus.h"
#include "plugin/spank/lease.h"
#include "plugin/spank/node_tasks.h"
#include "plugin/spank/pinning.h"
#include "plugin/spank/report.h"
#include "plugin/spank/staging.h"

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

// What slurmstepd prepares as root for the tasks that it forks.
struct Prepared {
  StepOnNode step;
  Settings settings;
  std::optional<SrunLink> link;
  std::string refusal;  ///< why the step cannot be served at all, or ""
  std::unique_ptr<NodeTasks> tasks;
  bool pins = false;
  bool bound_by_hand = false;      ///< --cpu-bind says where the tasks run
  std::uint32_t granted_cpus = 0;  ///< CPUs of this node that the step was given
  int cpus_per_task = 0;           ///< as the job asked for, or 0
  std::optional<Lease> lease;      ///< held until the step has ended
  int alive = -1;                  ///< closed when all tasks have ended: staging in the background ends then
  std::uint32_t ended = 0;         ///< tasks that have
};

std::unique_ptr<Prepared>& prepared() {
  static std::unique_ptr<Prepared> the;
  return the;
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
  std::string name = job_variable(spank, "SLURMD_NODENAME");
  if (!name.empty()) return name;
  std::array<char, HOST_NAME_MAX + 1> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) return "?";
  const std::string whole = host.data();
  return whole.substr(0, whole.find('.'));
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

// In the task's process: before, these variables are still those of the command that called srun, which may
// be a task of another step on another node.
void identify_by_variables(spank_t spank, StepOnNode& step) {
  step.node = this_node(spank);
  if (step.nodes == 1) return;
  step.node_list = job_variable(spank, "SLURM_STEP_NODELIST");
  // The components of a heterogeneous step in an ordinary job have the same numbers and the same list of
  // nodes; srun launches each from a port of its own.
  step.component = job_variable(spank, "SLURM_STEP_LAUNCHER_PORT");
  step.srun_address = job_variable(spank, "SLURM_LAUNCH_NODE_IPADDR");
}

// Under --export=NONE the batch step's options come empty, but its variables hold what sbatch handed on.
void find_options_of_batch(spank_t spank) {
  for (const OptionRow& row : option_table()) {
    auto& value = given().values.at(static_cast<std::size_t>(row.option));
    if (value) continue;
    const std::string text = job_variable(spank, ("SLURM_SPANK_" + handed_on_name(row.option)).c_str());
    if (!text.empty() && text != "(null)") value = text;
  }
}

// Where users write down what they hold, so that together they stay below the node's total: the names are
// root's, so that nobody can take another's (staging/cache/ledger.h).
void make_claim(const Folder& stores, uid_t uid) {
  const Folder claims = stores.own("claims", 0, 0, 0755);
  claims.own_file("lock", 0, 0644);
  claims.own_file(std::to_string(uid), uid, 0644);
}

void make_store(Prepared& step, gid_t gid) {
  const std::string folder = tier_folder(given().config, step.settings);
  if (folder.empty()) {
    step.step.problem = "--stage: the administrator has set no 'cache' for this partition in lockstep.conf";
    return;
  }
  step.step.store = folder + "/" + std::to_string(step.step.uid);
  try {
    const Folder stores = Folder::open_root(folder, true);
    stores.own(std::to_string(step.step.uid), step.step.uid, gid, 0700);
    if (step.settings.tier == "disk" && given().config.total > 0) make_claim(stores, step.step.uid);
  } catch (const Refusal& refusal) {
    step.step.problem = refusal.what();
  }
}

// For a step that may read from its source, where this node's cache cannot be used.
void make_links(Prepared& step, gid_t gid) {
  try {
    const Folder links = Folder::open_root(given().config.links, true);
    step.step.links = links.own(std::to_string(step.step.uid), step.step.uid, gid, 0700).path();
  } catch (const Refusal& refusal) {
    log(refusal.what());  // staging says what is wrong with the cache
  }
}

// Tasks have it too, until their program takes their place, and the staging helper the other end. Process
// tracking need not find the helper when the tasks have ended: it finds out by itself.
void make_alive(Prepared& step) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    step.step.problem = "cannot make a pipe: " + errno_text(errno);
    return;
  }
  step.step.alive = ends[0];
  step.alive = ends[1];
}

void make_record_folder(Prepared& step) {
  std::array<char, 4096> buffer{};
  group entry{};
  group* found = nullptr;
  if (::getgrnam_r(given().config.group.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr) {
    return;
  }
  try {
    const Folder records = Folder::open_root(given().config.records, true);
    // The exporter finds the jobs in it; other users need not see their numbers.
    const Folder user = records.own(std::to_string(step.step.uid), 0, entry.gr_gid, 0751);
    const std::string name = std::to_string(step.step.job) + "." + step.step.step;
    const Folder folder = user.own(name, step.step.uid, entry.gr_gid, 02750);
    ::unlinkat(folder.fd(), kEnded, 0);  // a requeued job runs again under its old number
    step.step.record = folder.path();
  } catch (const Refusal& refusal) {
    log(std::string("no records: ") + refusal.what());
  }
}

void set(spank_t spank, const char* name, const std::string& value, bool replace) {
  if (!value.empty()) spank_setenv(spank, name, value.c_str(), replace ? 1 : 0);
}

void tell_task(spank_t spank, const Placement& place) {
  set(spank, "LOCKSTEP_CPUS", place.cpus, true);
  set(spank, "LOCKSTEP_WORKER_CPUS", place.workers, true);
  set(spank, "LOCKSTEP_NUMA", place.numa, true);
  set(spank, "LOCKSTEP_GPUS", place.gpus, true);
  if (place.threads > 0) set(spank, "OMP_NUM_THREADS", std::to_string(place.threads), false);
  set(spank, "OMP_PLACES", openmp_places(place.cpus, siblings_here), false);
  set(spank, "OMP_PROC_BIND", "close", false);
}

// What only the task's own variables say: they are set for each task before task_init.
void note_granted(spank_t spank, Prepared& step, std::uint32_t task) {
  const std::string asked = job_variable(spank, "SLURM_CPUS_PER_TASK");
  std::from_chars(asked.data(), asked.data() + asked.size(), step.cpus_per_task);
  const std::string of_step = job_variable(spank, "SLURM_STEP_GPUS");
  for (const char* const name : {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}) {
    std::vector<std::string> gpus = gpus_of_task(job_variable(spank, name), of_step);
    for (std::string& gpu : gpus) gpu = pci_address(gpu);
    if (!gpus.empty()) return step.tasks->note_gpus(task, join_list(gpus));
  }
}

// The CPUs for the staging helper, "" where it keeps those of the task that starts it.
std::string cpus_for_staging(Prepared& step) {
  const std::optional<cpu_set_t> whole = step_cpus(step.granted_cpus);
  if (!whole) return "";
  if (step.settings.mode == "block") return format_cpus(*whole);
  cpu_set_t masks = parse_cpus(step.tasks->all_cpus(kSecondsForTasks));
  cpu_set_t computing = masks;
  if (!step.tasks->placement(0).cpus.empty()) {
    CPU_ZERO(&masks);
    CPU_ZERO(&computing);
    for (std::uint32_t task = 0; task < step.tasks->size(); ++task) {
      const Placement place = step.tasks->placement(task);
      const cpu_set_t compute = parse_cpus(place.cpus);
      const cpu_set_t workers = parse_cpus(place.workers);
      CPU_OR(&computing, &computing, &compute);
      CPU_OR(&masks, &masks, &compute);
      CPU_OR(&masks, &masks, &workers);
    }
  }
  return format_cpus(spare_cpus(*whole, masks, computing));
}

// The node's share of the work, done once for all its tasks.
Ended work_for_node(Prepared& step) {
  if (step.pins && step.bound_by_hand) {
    if (step.step.node_id == 0) say("--pin stands down: --cpu-bind says where this step's tasks run");
  } else if (step.pins) {
    try {
      plan_node(*step.tasks, given().config, step.settings.pin, step.step.node, step.cpus_per_task);
    } catch (const Refusal& refusal) {
      say(step.step.node + ": tasks keep the CPUs that Slurm gave them: " + refusal.what());
    }
  }
  if (step.settings.sources.empty()) return Ended::well;
  step.step.cpus = cpus_for_staging(step);
  return stage(step.step, given().config, step.settings, step.link ? &*step.link : nullptr);
}

// What the batch script, or the task that called srun or sbatch, was told holds for its own step. Folders are
// known by their names as ours: one that the user has set stays.
void forget_outer_step(spank_t spank, const StepOnNode& step) {
  if (names_our_data(job_variable(spank, "LOCKSTEP_DATA"), step.uid)) spank_unsetenv(spank, "LOCKSTEP_DATA");
  if (names_our_record(job_variable(spank, "LOCKSTEP_RECORD"), given().config.records, step.uid)) {
    spank_unsetenv(spank, "LOCKSTEP_RECORD");
  }
  if (!given().values.at(static_cast<std::size_t>(Option::pin))) return;
  for (const char* const name : {"LOCKSTEP_CPUS", "LOCKSTEP_WORKER_CPUS", "LOCKSTEP_NUMA", "LOCKSTEP_GPUS"}) {
    spank_unsetenv(spank, name);
  }
}

void pin_task(spank_t spank, const Prepared& step, std::uint32_t task) {
  const Placement place = step.tasks->placement(task);
  if (place.cpus.empty()) return;
  try {
    bind(place);
    if (step.settings.pin.memory == "interleave") interleave_memory(place);
    tell_task(spank, place);
  } catch (const Refusal& refusal) {
    say(step.step.node + ": task " + std::to_string(task) +
        " keeps the CPUs that Slurm gave it: " + refusal.what());
  }
}

}  // namespace

void init(spank_t spank, int argc, char** argv) {
  load_config(argc, argv, job_variable(spank, "SLURM_JOB_PARTITION"));
  register_options(spank, true);
}

void init_post_opt(spank_t spank) {
  const auto id = item<std::uint32_t>(spank, S_JOB_STEPID);
  if (id == kExternStep || !given().config.enabled) return;
  const bool for_tasks = id != kBatchStep && id != kInteractiveStep;
  if (!for_tasks) find_options_of_batch(spank);
  auto step = std::make_unique<Prepared>();
  try {
    if (!given().any() && !given().config_error.empty()) return;
    step->settings = given().settings();
    if (given().link && !given().link->empty()) step->link = SrunLink::decode(*given().link);
  } catch (const Refusal& refusal) {
    step->refusal = refusal.what();
  }
  // A batch script is no task to pin: what it starts inherits its CPUs and its OMP_ variables.
  step->pins = for_tasks && step->settings.pin.on();
  const bool stages = !step->settings.sources.empty();
  // What is switched off in a step is taken out of its tasks' variables.
  if (!stages && !step->pins && !step->settings.metrics && step->refusal.empty() && !given().any()) return;
  step->step = identify(spank);
  step->granted_cpus = item<std::uint16_t>(spank, S_JOB_NCPUS);
  if (stages) make_store(*step, item<gid_t>(spank, S_JOB_GID));
  if (stages && step->settings.on_error == "source") make_links(*step, item<gid_t>(spank, S_JOB_GID));
  if (stages && step->settings.mode == "background") make_alive(*step);
  if (step->settings.metrics) make_record_folder(*step);
  step->tasks = std::make_unique<NodeTasks>(
      std::max<std::uint32_t>(1, item<std::uint32_t>(spank, S_JOB_LOCAL_TASK_COUNT)));
  prepared() = std::move(step);
}

void user_init() {
  if (!prepared() || prepared()->settings.sources.empty()) return;
  StepOnNode& step = prepared()->step;
  try {
    if (step.problem.empty()) {
      prepared()->lease.emplace(Lease::take(step.store, std::to_string(step.job) + "." + step.step));
      step.lease = prepared()->lease->path();
    }
  } catch (const Refusal& refusal) {
    step.problem = refusal.what();
  }
  if (!step.problem.empty() && !step.links.empty()) step.store = step.links;
}

void task_exit() {
  if (!prepared() || ++prepared()->ended < prepared()->tasks->size()) return;
  if (prepared()->alive >= 0) ::close(std::exchange(prepared()->alive, -1));
}

void exit() {
  if (prepared() && prepared()->lease) prepared()->lease->remove_name();
}

void task_init(spank_t spank) {
  const bool bound_by_hand = job_variable(spank, kBoundByHand) == kYes;
  spank_unsetenv(spank, kBoundByHand);
  if (!prepared()) return;
  Prepared& step = *prepared();
  identify_by_variables(spank, step.step);
  const auto task = static_cast<std::uint32_t>(item<int>(spank, S_TASK_ID));
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (step.pins) note_granted(spank, step, task);
  step.bound_by_hand = bound_by_hand;
  if (::sched_getaffinity(0, sizeof cpus, &cpus) == 0) step.tasks->note_cpus(task, cpus);
  const Ended ended = step.tasks->once([&] {
    try {
      if (step.refusal.empty()) return work_for_node(step);
      say(step.step.node + ": " + step.refusal);
    } catch (const std::exception& error) {  // out of memory or the like: no task may run without its data
      say(step.step.node + ": " + error.what());
    }
    return Ended::badly;
  });
  // The step is being cancelled, and this task's signal is on its way. Ending like the others spares
  // slurmstepd a message of its own to a srun that may be gone, for which it waits seconds.
  if (ended == Ended::killed) ::raise(SIGTERM);
  // Not a return value: Slurm would ignore it, or let the other nodes' tasks run on without these.
  if (ended != Ended::well) ::_exit(kStagingFailed);
  forget_outer_step(spank, step.step);
  if (step.pins) pin_task(spank, step, task);
  if (!step.settings.sources.empty()) set(spank, "LOCKSTEP_DATA", data_folder(step.step), true);
  set(spank, "LOCKSTEP_RECORD", step.step.record, true);
}

}  // namespace remote
}  // namespace lockstep::spank
