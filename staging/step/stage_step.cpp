#include "staging/step/stage_step.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <memory>
#include <mutex>
#include <optional>

#include "common/clock.h"
#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "common/process.h"
#include "staging/cache/layout.h"
#include "staging/cache/shared.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/step/background.h"
#include "staging/step/source_versions.h"
#include "staging/step/step_folder.h"
#include "staging/step/step_progress.h"
#include "staging/step/step_report.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/exchange/peer_group.h"
#include "staging/transfer/put.h"
#include "staging/transfer/supervisor.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

std::chrono::milliseconds call_timeout(const StepCall& call) {
  if (call.source_patience > 0) return std::chrono::seconds(call.source_patience);
  return default_call_timeout(call.hello.nodes);
}

// Throws Error if srun has no rendezvous, UsageError if `call.ports` is not LOW-HIGH.
Exchange::Options exchange_of(const StepCall& call) {
  Exchange::Options exchange;
  exchange.key = RendezvousAddress::from_environment().key;
  exchange.step = call.hello.step_name();
  exchange.node_id = call.hello.node_id;
  exchange.chunk_bytes = ChunkPlan::kChunkBytes;
  exchange.peer_networks = call.peer_networks;
  if (!call.ports.empty()) {
    const std::size_t dash = call.ports.find('-');
    const char* const end = call.ports.data() + call.ports.size();
    const auto low = std::from_chars(call.ports.data(), end, exchange.first_port);
    if (dash == std::string::npos || low.ptr != call.ports.data() + dash ||
        std::from_chars(low.ptr + 1, end, exchange.last_port).ptr != end) {
      fail_usage("--ports '{}': must be LOW-HIGH", call.ports);
    }
  }
  return exchange;
}

class Step {
 public:
  /// `background` is null if the step waits for its data. The references must outlive this object.
  Step(const StepCall& call, Background* background)
      : call_(call),
        background_(background),
        system_(call.file_system != nullptr ? *call.file_system : FileSystem::real()),
        progress_(call.record, call.hello) {}

  void run();
  /// The step runs, and an earlier process failed: makes all names lead to the source again.
  void go_on_from_source(const std::string& why);

 private:
  bool spans_nodes() const { return call_.hello.nodes > 1; }
  bool to_source() const { return call_.on_error == OnError::source; }
  void meet();
  void say_first(const std::string& why);
  [[noreturn]] void end_failed();
  Verdict prepare();
  void join_peers();
  Verdict stage();
  Verdict failed(const std::string& why);
  void agree(const Verdict& here);
  Verdict ask_srun(const Verdict& here);
  void stage_in_background();
  void fall_back(const std::string& why);
  std::vector<std::string> point_at_source(bool tasks_run);
  void check_sources();
  PutOptions options();
  std::vector<PutResult> put_alone();
  std::vector<PutResult> put_with_peers();
  SourceVersions versions(SourceVersions::Look look);
  void put_missing();
  void lease_staged();
  bool lease_shared(const std::string& object);

  StepFolder folder() { return {call_.cache, call_.hello.job, system_, call_.restart}; }

  const StepCall& call_;
  Background* const background_;
  FileSystem& system_;
  StepProgress progress_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<PeerGroup> peers_;
  std::atomic<bool> outcome_sent_ = false;
  bool added_ = false;  // names of sources
  std::once_flag said_lost_;
};

// Called when the reason has been printed, here or by srun. Does not wait for reads that are under way, which
// may be slow. The incomplete copy stays, and the next call continues it.
void Step::end_failed() {
  progress_.failed();
  if (background_ != nullptr) background_->release(1);
  ::_exit(1);
}

// Without srun, which prints one line for all nodes, only the first node prints.
void Step::say_first(const std::string& why) {
  std::call_once(said_lost_, [&] {
    if (call_.hello.node_id == 0) print_for_job(call_.hello.node + ": " + why);
  });
}

// If srun has no rendezvous, all nodes see that and may go on without it. If this node cannot reach it or loses the
// connection, the cause may be this node's alone: the other nodes count it as failed.
void Step::meet() {
  RendezvousAddress address;
  try {
    address = RendezvousAddress::from_environment();
  } catch (const Error& error) {
    say_first(error.what());
    if (!to_source()) end_failed();
    return;
  }
  try {
    rendezvous_ = std::make_unique<Rendezvous>(address, call_.hello, [this](const std::string& why) {
      if (outcome_sent_) return;
      if (!why.empty()) say_first(why);
      end_failed();
    });
  } catch (const Error& error) {
    say_first(error.what());
    end_failed();
  }
}

void Step::check_sources() {
  if (!call_.problem.empty()) fail("{}", call_.problem);
  check_shards(call_.sources);
  cache::restore_modes(system_, call_.cache);
  folder().check_names(call_.sources);
}

PutOptions Step::options() {
  PutOptions options;
  options.cache_dir = call_.cache;
  options.file_system = &system_;
  options.verify = call_.verify;
  options.limits.quota = call_.quota;
  options.limits.total = call_.total;
  options.limits.keep = std::chrono::seconds(call_.keep);
  options.limits.restore_modes = false;  // check_sources() has done it
  options.limits.notice = [this](const std::string& line) { print_for_job(call_.hello.node + ": " + line); };
  options.shared = call_.shared;
  options.lease = call_.lease;
  options.bandwidth = call_.bandwidth;
  options.copier_patience = 2 * call_timeout(call_);
  options.peers = peers_.get();
  options.notice = options.limits.notice;
  options.waiting = [this](const std::string& source) {
    print_for_job(fmt::format("{}: another job is staging {}, waiting for it", call_.hello.node, source));
  };
  options.detailed_progress = [this](const std::string& source, const PutProgress& now) {
    progress_.update(source, now);
  };
  if (background_ == nullptr) return options;
  options.listed = [this](const std::string& source, const std::vector<std::string>& names) {
    const SourceLinks links = SourceLinks::of(source);
    folder().expand_folder_link(links, names);
  };
  options.file = [this](const std::string& source, const std::string& name, const fs::path& copy) {
    folder().replace_file(source, name, copy);
  };
  return options;
}

// The versions that earlier steps of the job have staged on this node and, if it looks, those at the sources now.
SourceVersions Step::versions(SourceVersions::Look look) {
  return SourceVersions::of(call_.sources, folder().staged(call_.sources), look,
                            [&](const std::string& text) { print_for_job(call_.hello.node + ": " + text); });
}

// Unchanged sources that an earlier step of this job has staged stay as they are, because other steps may use them.
std::vector<PutResult> Step::put_alone() {
  using Look = SourceVersions::Look;
  const SourceVersions found = versions(background_ != nullptr ? Look::done : Look::now);
  for (const std::string& source : found.changed()) folder().forget(source);
  const std::vector<std::string> wanted = found.missing();
  return wanted.empty() ? std::vector<PutResult>() : put(wanted, options());
}

// Nodes that cooperate all put a source if one of them misses it; those that have it keep their copy. One node looks at
// the sources for all.
std::vector<PutResult> Step::put_with_peers() {
  PutOptions all = options();
  for (const PutResult& result : folder().staged(call_.sources)) all.staged[result.source] = result.version;
  all.stale = [this](const std::string& source) { folder().forget(source); };
  try {
    return put(call_.sources, all);
  } catch (const OtherRelease& error) {
    if (call_.hello.node_id == 0) print_for_job(error.what());
    peers_.reset();
    return put_alone();
  }
}

// Does not hold the lock of the job's folder while it puts: it may wait for another step of the same job.
void Step::put_missing() {
  const std::vector<PutResult> results = peers_ ? put_with_peers() : put_alone();
  StepFolder names = folder();
  std::vector<PutResult> added;
  for (const PutResult& result : results) {
    if (names.has(result)) continue;
    if (!result.note.empty())
      print_for_job(fmt::format("{}: {}: {}", call_.hello.node, result.source, result.note));
    added.push_back(result);
  }
  names.add(added);
  // On many nodes, one line for all of them suffices (agree()).
  constexpr std::uint32_t kManyNodes = 16;
  if (!added.empty() &&
      (call_.hello.nodes <= kManyNodes || call_.hello.node_id == 0 || background_ != nullptr))
    print_for_job(call_.hello.node + ": " + summary(added));
  added_ = added_ || !added.empty();
  progress_.done("done", names.staged(call_.sources));
}

// Leases the copies that earlier steps of the job have staged, because this one uses them too. Hard links
// stay valid even if the object is removed; links into the shared store do not.
void Step::lease_staged() {
  cache::Store store(call_.cache, {.restore_modes = false}, system_);  // check_sources() has done it
  for (const PutResult& result : folder().staged(call_.sources)) {
    if (result.shared) {
      if (!lease_shared(result.object)) folder().forget(result.source);
      continue;
    }
    if (call_.lease.empty()) continue;
    // Another job may be replacing a damaged copy. This job's links stay valid without the lease.
    if (!store.has(result.object)) continue;
    try {
      const cache::ObjectLock lock =
          store.lock(result.object, FileSystem::LockKind::shared, {}, 2 * call_timeout(call_));
      if (store.has(result.object)) store.add_lease(result.object, call_.lease);
    } catch (const cache::NoProgress&) {
    }
  }
}

// Returns false if the copy is gone or cannot be leased. The source is put again then.
bool Step::lease_shared(const std::string& object) {
  try {
    const std::optional<cache::Shared> shared = cache::Shared::open(call_.shared, system_);
    if (!shared) return false;
    const std::optional<cache::ObjectLock> lock = shared->find(object);
    if (!lock) return false;
    if (!call_.lease.empty()) shared->add_lease(object, call_.lease);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Looks at the sources without holding the lock of the job's folder: a source that does not answer must not block the
// job's other steps.
std::vector<std::string> Step::point_at_source(bool tasks_run) {
  std::vector<SourceLinks> links;
  for (const std::string& source : folder().missing(call_.sources)) links.push_back(SourceLinks::of(source));
  StepFolder names = folder();
  std::vector<std::string> pointed;
  for (const SourceLinks& source : links) {
    if (names.missing({source.source}).empty()) continue;  // another step of the job has staged it meanwhile
    tasks_run ? names.return_to(source) : names.point_at(source);
    pointed.push_back(source.source);
  }
  return pointed;
}

void Step::fall_back(const std::string& why) {
  folder().check_names(call_.sources);
  // Links into the shared store lead nowhere once the admin's copy is gone.
  for (const PutResult& result : folder().staged(call_.sources)) {
    if (result.shared && !lease_shared(result.object)) folder().forget(result.source);
  }
  const std::vector<std::string> missing = point_at_source(false);
  if (!missing.empty())
    print_for_job(fmt::format("{}: {}; the job reads from the source", call_.hello.node, why));
  progress_.done(missing.empty() ? "done" : "source", folder().staged(call_.sources));
}

// The part of the work that is done before the step starts.
Verdict Step::prepare() {
  check_sources();
  lease_staged();
  if (background_ == nullptr) {
    put_missing();
    return {};
  }
  for (const std::string& source : versions(SourceVersions::Look::now).changed()) folder().forget(source);
  point_at_source(false);
  return {true, "", true};
}

void Step::join_peers() {
  if (!rendezvous_ || !call_.cooperate) return;
  peers_ = std::make_unique<PeerGroup>(*rendezvous_, exchange_of(call_), call_.hello.node);
  // Usually all nodes lack the network then; lockstep-doctor names each node that does.
  if (!call_.peer_networks.empty() && !peers_->uses_peer_network() && call_.hello.node_id == 0)
    print_for_job(
        call_.hello.node +
        ": no interface has an address in peer_network (lockstep.conf), so the nodes send data to each other over the network that leads to srun: run lockstep-doctor on the nodes");
}

Verdict Step::stage() {
  try {
    // In the background the exchange begins when all nodes have started.
    if (background_ == nullptr && call_.problem.empty()) join_peers();
    return prepare();
  } catch (const std::exception& error) {
    peers_.reset();  // other nodes get its chunks elsewhere
    return failed(error.what());
  }
}

// The verdict of a node whose staging has failed.
Verdict Step::failed(const std::string& why) {
  // If there are no sources, they were refused, and the job has nothing to read from.
  if (!to_source() || call_.sources.empty()) return {false, why};
  try {
    fall_back(why);
    return {};
  } catch (const std::exception& second) {
    return {false, second.what()};
  }
}

void Step::agree(const Verdict& here) {
  outcome_sent_ = true;
  if (!rendezvous_) {
    if (here.good) return;
    print_for_job(call_.hello.node + ": " + here.why);
    end_failed();
  }
  const Verdict verdict = ask_srun(here);
  if (!verdict.good) end_failed();
  if (!verdict.times.empty())
    print_for_job(
        fmt::format("{}: staged on {} nodes in {}", call_.hello.node, call_.hello.nodes, verdict.times));
  // An earlier process of this node was killed after all nodes had their data.
  if (!here.good) progress_.done("done", folder().staged(call_.sources));
}

// Asks again if the connection is lost after this node has sent its outcome: the other nodes may already have
// started the step.
Verdict Step::ask_srun(const Verdict& here) {
  try {
    return rendezvous_->agree(here);
  } catch (const Error& lost) {
    try {
      Hello hello = call_.hello;
      hello.replaces_process = true;  // srun may not have noticed that the first connection is lost
      return Rendezvous(RendezvousAddress::from_environment(), hello, [](const std::string&) {}).agree(here);
    } catch (const Error&) {
      say_first(lost.what());
      end_failed();
    }
  }
}

// Also replaces names that already lead to local files: an unfinished copy was not checked as a whole.
void Step::go_on_from_source(const std::string& why) {
  print_for_job(fmt::format("{}: {}; the job goes on reading from the source", call_.hello.node, why));
  try {
    point_at_source(true);
    progress_.done("source", folder().staged(call_.sources));
  } catch (const std::exception& error) {
    print_for_job(fmt::format("{}: {}", call_.hello.node, error.what()));
    progress_.failed();
  }
}

void Step::stage_in_background() {
  try {
    join_peers();
    put_missing();
  } catch (const std::exception& error) {
    peers_.reset();
    go_on_from_source(error.what());
  }
}

void Step::run() {
  const std::uint64_t begin_ns = monotonic_ns();
  if (spans_nodes()) meet();
  Verdict here = stage();
  if (added_) here.seconds = seconds_between(begin_ns, monotonic_ns());
  agree(here);
  if (background_ == nullptr) return;
  background_->release(0);
  if (here.more) stage_in_background();
  peers_.reset();
}

// The work of a child process of the step. If it gets stuck in a system call, the next child does less.
enum class Attempt {
  stage,
  use_source,  // the names lead to the source
  report,      // the other nodes learn the reason
};

// The next attempt after one that got stuck.
std::optional<Attempt> next_after(Attempt attempt, bool disk_is_stuck, OnError on_error) {
  if (attempt == Attempt::stage) return disk_is_stuck ? Attempt::report : Attempt::use_source;
  if (attempt == Attempt::use_source && on_error == OnError::source) return Attempt::report;
  return std::nullopt;
}

// Runs the step in a child process, and returns there. If the child is stuck in a system call, or is killed while the
// step runs, another child reports that and, if it can, makes the names lead to the source.
void stage_in_child(StepCall call, Background* background) {
  SuperviseOptions options;
  if (call.hello.nodes > 1) options.call_timeout = call_timeout(call);  // a single node delays no other
  options.disk_folders = {call.cache, call.shared};
  options.disk_name = fmt::format("the local disk of {} ({})", call.hello.node, call.cache);
  const auto finish = [&](int code) { background != nullptr ? background->end(code) : ::_exit(code); };
  const auto step_started = [&] { return background != nullptr && background->released(); };
  for (std::optional<Attempt> attempt = Attempt::stage;;) {
    const bool goes_on = step_started();
    const std::optional<ChildEnd> end = run_supervised(options);
    if (!end) {
      if (background != nullptr) background->end_with_step();
      Step step(call, background);
      if (goes_on) {
        step.go_on_from_source(call.problem);
      } else {
        step.run();
      }
      if (background != nullptr) ::_exit(0);  // the calling process has already ended
      return;
    }
    std::string why = end->stuck;
    if (!why.empty()) {
      end_child(end->pid);
    } else if (attempt == Attempt::stage && step_started() && end->signal() > 0 && background->step_runs()) {
      why = fmt::format("staging was ended by signal {}", end->signal());
    } else {
      finish(end->code);
    }
    attempt = next_after(*attempt, end->disk, call.on_error);
    if (step_started() && attempt != Attempt::use_source) {
      print_for_job(fmt::format("{}: {}", call.hello.node, why));
      StepProgress(call.record, call.hello).failed();
      finish(0);
    }
    if (!attempt) finish(1);
    if (attempt == Attempt::report) call.on_error = OnError::fail;
    call.problem = why;
    call.hello.replaces_process = true;
  }
}

}  // namespace

void stage_step(const StepCall& call) {
  // A write to a closed connection or job output must fail, and must not end the process.
  ::signal(SIGPIPE, SIG_IGN);
  if (!call.cpus.empty()) bind_this_thread(parse_cpu_list(call.cpus));
  Background* const background =
      call.mode == StepMode::background ? &Background::start(UniqueFd(call.watch_fd)) : nullptr;
  if (background == nullptr && call.hello.nodes == 1) return Step(call, nullptr).run();
  stage_in_child(call, background);
}

}  // namespace lockstep::transfer
