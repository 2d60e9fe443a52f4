#include "runtime/comm/world.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/environment.h"
#include "common/error.h"
#include "common/launcher.h"
#include "common/leaf/cpu_list.h"
#include "common/leaf/descriptors.h"
#include "common/process.h"
#include "runtime/comm/alike.h"
#include "runtime/comm/clock_offset.h"
#include "runtime/comm/control/control_channel.h"
#include "runtime/comm/cpu/communicator.h"
#include "runtime/comm/failure.h"
#include "runtime/comm/job_end.h"
#include "runtime/comm/metrics_server.h"
#include "runtime/comm/mpi/session.h"
#include "runtime/comm/process_settings.h"
#include "runtime/comm/shared_cpus.h"
#include "runtime/comm/single/communicator.h"
#include "runtime/profile/operators.h"
#include "runtime/profile/profiler.h"
#include "runtime/profile/record_folder.h"
#ifdef LOCKSTEP_WITH_NCCL
#include "runtime/comm/nccl/communicator.h"
#endif

namespace lockstep {
namespace {

enum class WorldState : std::uint8_t { absent, open, left_by_exception };
std::atomic<WorldState> state{WorldState::absent};

// A rank that exits with World still open would leave the others waiting. A forked child is not a rank.
pid_t rank_process = 0;

void at_exit(int status, void* /*unused*/) {
  if (state == WorldState::absent || rank_process != ::getpid()) return;
  const char* why =
      state == WorldState::open ? "the program exited before World ended" : "an exception ended the program";
  comm::end_job(fmt::format("{}; ending the job", why), status == 0 ? 1 : status);
}

std::string name_of(const comm::RankInfo& place) {
  return rank_name(place.rank, place.node_name);
}

comm::RankInfo place_from_environment() {
  comm::RankInfo place;
  place.rank = mpi_rank().value_or(static_cast<int>(environment::get_integer("SLURM_PROCID").value_or(0)));
  place.node_name = lockstep::node_name();
  return place;
}

struct AppliedSettings {
  comm::Cpus cpus;
  bool heap_kept = false;
  int threads = 1;
  int sharing = 1;
  int share = 1;  // of the CPUs
};

void print_settings(const comm::Communicator& communicator, const AppliedSettings& applied) {
  if (communicator.rank() != 0) return;
  const auto& place = communicator.place();
  const comm::Blas blas = comm::find_blas();
  std::string line = fmt::format(
      "lockstep: {} rank{} on {} node{} ({}); rank 0 computes with {} thread{} on CPUs {}", place.size,
      place.size == 1 ? "" : "s", place.nodes, place.nodes == 1 ? "" : "s", communicator.name(),
      applied.threads, applied.threads == 1 ? "" : "s", format_cpu_list(applied.cpus.compute));
  if (applied.sharing > 1) line += fmt::format(" shared by {} ranks", applied.sharing);
  line += fmt::format("; {}; heap {}\n", blas.name, applied.heap_kept ? "kept" : "default");
  if (const auto warning = comm::too_many_threads(applied.threads, applied.share))
    line += fmt::format("lockstep: warning: {}\n", *warning);
  if (blas.slow) {
    line +=
        "lockstep: the reference BLAS makes training about 20 times slower: install OpenBLAS (Debian: libopenblas0-pthread)\n";
  }
  std::fputs(line.c_str(), stderr);
}

// Rank 0's, because without Slurm each rank may have another parent process.
std::uint64_t job_number(comm::Communicator& communicator) {
  auto job = static_cast<std::uint64_t>(environment::get_integer("SLURM_JOB_ID").value_or(0));
  if (job == 0) job = profile::local_job_id();
  communicator
      .broadcast({reinterpret_cast<std::byte*>(&job), sizeof(job), comm::DataType::u8}, 0, "the job's number")
      ->wait();
  return job;
}

profile::Identity identity(comm::Communicator& communicator, const char* program) {
  const comm::RankInfo& place = communicator.place();
  profile::Identity identity;
  identity.job_id = job_number(communicator);
  identity.step_id = static_cast<std::uint32_t>(environment::get_integer("SLURM_STEP_ID").value_or(0));
  identity.rank = place.rank;
  identity.size = place.size;
  identity.local_rank = place.local_rank;
  identity.node = place.node_name;
  const std::string_view path = program == nullptr ? "" : program;
  identity.program = path.substr(path.rfind('/') + 1);
  return identity;
}

// The ranks may have different environments.
// LibTorch's operators are most of a trace, and a browser can open those of this many ranks. Further ranks
// leave them out.
constexpr int kRanksWithOperators = 16;

}  // namespace

struct World::Impl {
  std::unique_ptr<comm::ControlChannel> control_channel;  // outlives MPI, whose end is collective too
  std::unique_ptr<comm::mpi::Session> session;
  std::unique_ptr<comm::Communicator> communicator;
  std::unique_ptr<comm::Communicator> device_communicator;
  std::optional<profile::Profiler> profiler;  // outlives the timer, which uses it
  std::optional<profile::StepTimer> timer;
  std::unique_ptr<comm::MetricsServer> metrics_server;
  std::string run;  // JOB.STEP
  bool profile_from_environment = false;
  std::atomic<int> device{-1};
  int exceptions_at_start = std::uncaught_exceptions();

  void begin(int& argc, char**& argv);
  void start_profile_from_environment();
  void start_profile(std::string_view schedule);
  void start_metrics_server();

  [[noreturn]] void exit(int code) {
    end();
    int initialised = 0;
    int finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (initialised != 0 && finalised == 0) MPI_Finalize();  // the program initialised it
    // Without the destructors of static objects: the loader's threads may still use them.
    std::fflush(nullptr);
    std::quick_exit(code);
  }

  void end_profile() {
    timer->finish();
    if (profiler) profiler->finish();
  }

  // All ranks come here together.
  void end() {
    end_profile();
    metrics_server.reset();
    timer.reset();
    profiler.reset();
    device_communicator.reset();
    communicator.reset();
    comm::set_abort_function(nullptr);
    session.reset();
    control_channel.reset();
    state = WorldState::absent;
  }

  // After an exception the other ranks do not reach their end together with this one. The program can print
  // what it caught; then its exit ends the job.
  void leave_by_exception() {
    state = WorldState::left_by_exception;
    static_cast<void>(device_communicator.release());
    static_cast<void>(communicator.release());
    static_cast<void>(session.release());
    static_cast<void>(control_channel.release());
  }
};

void World::Impl::begin(int& argc, char**& argv) {
  const comm::RankInfo expected = place_from_environment();
  comm::install_failure_handling(name_of(expected), nullptr);

  raise_open_files_limit();  // rank 0 has a connection to each node
  AppliedSettings applied;
  applied.cpus = comm::find_cpus();
  applied.heap_kept = comm::keep_heap();
  comm::flush_denormals();  // before LibTorch and the loader start threads
  comm::bind_threads(applied.cpus);

  if (!mpi_rank()) {  // MPI_Init is slow, and fails on a machine without a network
    check_that_alone();
    communicator = comm::make_single_communicator(expected.node_name);
  } else {
    session = std::make_unique<comm::mpi::Session>(argc, argv);
    comm::install_failure_handling(name_of(session->place()), comm::mpi::abort_job);
    rank_process = ::getpid();
    static const int registered = on_exit(at_exit, nullptr);
    static_cast<void>(registered);
    state = WorldState::open;
    control_channel =
        comm::ControlChannel::start(session->place(), [this](const void* mine, std::size_t bytes, void* all) {
          const comm::Deadline deadline("the start of the control channel");
          comm::mpi::check(MPI_Allgather(mine, static_cast<int>(bytes), MPI_BYTE, all,
                                         static_cast<int>(bytes), MPI_BYTE, session->world()),
                           "MPI_Allgather");
        });
    communicator = comm::cpu::make_communicator(
        session->world(), session->place(), applied.cpus.assigned ? applied.cpus.all : std::vector<int>{});
  }

  const comm::SharedCpus shared = comm::compare_cpus(*communicator, applied.cpus.compute);
  applied.sharing = shared.ranks;
  applied.share = shared.threads;
  applied.threads = comm::choose_threads(shared.threads);
  comm::set_threads(applied.threads);
  comm::set_interop_threads(applied.threads);
  print_settings(*communicator, applied);
  const profile::Identity own = identity(*communicator, argc > 0 ? argv[0] : nullptr);
  run = fmt::format("{}.{}", own.job_id, own.step_id);
  timer.emplace(own);
  start_metrics_server();
  start_profile_from_environment();
}

// Metrics never end a job.
void World::Impl::start_metrics_server() {
  const auto listen = environment::get("LOCKSTEP_PROMETHEUS");
  if (!listen || communicator->place().local_rank != 0) return;
  try {
    if (&lockstep_start_metrics_server == nullptr)
      fail("LOCKSTEP_PROMETHEUS is ignored: the program does not link lockstep::prometheus");
    metrics_server = lockstep_start_metrics_server(*listen, timer->file());
  } catch (const Error& error) {
    fmt::print(stderr, "lockstep: {}: {}\n", name_of(communicator->place()), error.what());
  }
}

void World::Impl::start_profile_from_environment() {
  const std::string schedule =
      comm::broadcast_text(*communicator, environment::get_or("LOCKSTEP_PROFILE", ""), 0, "LOCKSTEP_PROFILE");
  if (schedule.empty()) return;
  try {
    start_profile(schedule);
    profile_from_environment = true;
  } catch (const UsageError& error) {  // every rank has it
    comm::end_job_once(fmt::format("LOCKSTEP_PROFILE: {}", error.what()));
  }
}

void World::Impl::start_profile(std::string_view schedule) {
  const profile::Schedule parsed = profile::parse_schedule(schedule);
  const comm::RankInfo& place = communicator->place();
  const auto shared = environment::get("LOCKSTEP_REPORT_DIR");
  if (shared) profile::check_report_folder(*shared);
  const std::filesystem::path folder = shared ? std::filesystem::path(*shared) : timer->file().parent_path();
  if (folder.empty())
    fail_usage("this rank writes no record, so a profile needs LOCKSTEP_REPORT_DIR: set it to a folder");
  if (!shared && place.nodes > 1 && place.rank == 0) {
    std::fputs(
        "lockstep: each node keeps the traces of its own ranks: for one of all ranks, set LOCKSTEP_REPORT_DIR to a folder that all nodes share\n",
        stderr);
  }
  const std::int64_t clock_offset = place.nodes > 1 ? comm::measure_clock_offset(*communicator).best() : 0;
  profile::ProfilerOptions options = {.schedule = parsed,
                                      .folder = folder,
                                      .rank = {.rank = place.rank,
                                               .node = place.node_name,
                                               .clock_offset_ns = clock_offset,
                                               .run = run,
                                               .ranks = shared ? place.size : place.local_size},
                                      .first = shared ? place.rank == 0 : place.local_rank == 0};
  if (place.rank < kRanksWithOperators) {
    options.trace_operators = [shapes = parsed.shapes](bool on) { profile::trace_operators(on, shapes); };
    options.trace_device = [this](bool on) {
      if (!on || (device >= 0 && profile::can_trace_device())) profile::trace_device(on);
    };
  }
  options.device_bytes = [this] { return device < 0 ? 0 : profile::device_bytes(device); };
  options.end_job = [this] {
    if (communicator->rank() == 0) {
      std::fputs("lockstep: the job ends now, because the schedule of its profile has 'stop'\n", stderr);
    }
    exit(0);
  };
  profiler.emplace(std::move(options));
  timer->set_profiler(&*profiler);
}

World::World(int& argc, char**& argv) : impl_(std::make_unique<Impl>()) {
  if (state != WorldState::absent) fail_usage("this process already has a World");
  try {
    impl_->begin(argc, argv);
  } catch (...) {
    if (impl_->session) impl_->leave_by_exception();
    throw;
  }
}

World::~World() {
  if (std::uncaught_exceptions() > impl_->exceptions_at_start && impl_->session) {
    impl_->leave_by_exception();
    return;
  }
  impl_->end();
}

void World::exit(int code) {
  impl_->exit(code);
}

const comm::RankInfo& World::place() const {
  return impl_->communicator->place();
}
comm::Communicator& World::communicator() {
  return *impl_->communicator;
}

comm::Communicator& World::communicator_of_device([[maybe_unused]] int device) {
#ifdef LOCKSTEP_WITH_NCCL
  auto& made = impl_->device_communicator;
  if (!made) {
    const comm::Deadline deadline("the start of NCCL among all ranks");
    impl_->device = device;
    made = comm::nccl::make_communicator(impl_->session ? MPI_COMM_WORLD : MPI_COMM_NULL, place(), device);
  }
  if (made->device() != device) {
    fail_usage("{} already uses cuda:{}, so it cannot use cuda:{}: a rank computes on one GPU",
               name_of(place()), made->device(), device);
  }
  return *made;
#else
  fail_usage(
      "this build of lockstep does not have NCCL, so the model must be on the CPU: to use GPUs, build against a PyTorch wheel with CUDA (docs/users/gpus.md)");
#endif
}

profile::StepTimer& World::timer() {
  return *impl_->timer;
}

void World::start_profile(std::string_view schedule) {
  if (impl_->profile_from_environment) return;
  if (impl_->profiler) fail_usage("the job is profiled already: call World::start_profile once");
  impl_->start_profile(schedule);
}

}  // namespace lockstep
