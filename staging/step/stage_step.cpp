#include "staging/step/stage_step.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <mutex>
#include <optional>

#include "common/clock.h"
#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "common/process.h"
#include "staging/cache/shared.h"
#include "staging/rendezvous/node_names.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/step/background.h"
#include "staging/step/job_folder.h"
#include "staging/step/step_report.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/exchange/exchange.h"
#include "staging/transfer/put.h"
#include "staging/transfer/source.h"
#include "staging/transfer/supervisor.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

std::chrono::milliseconds call_timeout(const StepCall& call) {
  if (call.source_patience > 0) return std::chrono::seconds(call.source_patience);
  return default_call_timeout(call.hello.nodes);
}

// The work of a child process of the step. If it gets stuck in a system call, the next child does less.
enum class Attempt {
  stage,
  use_source,  // the names lead to the source, if the user allows it; the other nodes learn that or the reason
  report,      // the other nodes learn the reason
};

class Step {
 public:
  /// `background` is null if the step waits for its data. The references must outlive this object.
  Step(const StepCall& call, Attempt attempt, Background* background)
      : call_(call),
        attempt_(attempt),
        background_(background),
        system_(call.put.file_system != nullptr ? *call.put.file_system : FileSystem::real()),
        progress_(call.record, call.hello, [this](const NodeProgress& progress) { tell(progress); }) {}

  void run() {
    if (tasks_run()) return end_staging(call_.problem);  // an earlier process failed
    if (call_.hello.nodes > 1) meet();
    const Verdict outcome = attempt_ == Attempt::stage ? stage() : use_source(call_.problem);
    agree(outcome);
    if (background_ == nullptr) return;
    background_->release(0);
    if (outcome.continues_in_background) stage_in_background();
    peers_.reset();
  }

 private:
  bool tasks_run() const { return background_ != nullptr && background_->released(); }
  void say(const std::string& text) const { print_for_job(call_.hello.node + ": " + text); }
  JobFolder folder() { return {call_.put.cache_dir, call_.hello.job, system_, call_.restart}; }

  // Called when the reason has been printed, here or by srun. Does not wait for reads that are under way, which
  // may be slow. The incomplete copy stays, and the next call continues it.
  [[noreturn]] void end_failed() {
    progress_.failed();
    if (background_ != nullptr) background_->release(1);
    ::_exit(1);
  }

  // Without srun, which prints one line for all nodes, only the first node prints.
  void say_first(const std::string& why) {
    std::call_once(said_lost_, [&] {
      if (call_.hello.node_id == 0) say(why);
    });
  }

  // srun prints one line for all nodes: with 1,024 nodes, their own would be 61,000 in ten minutes.
  void tell(const NodeProgress& progress) {
    if (rendezvous_) return rendezvous_->tell_progress(progress);
    if (call_.hello.node_id > 0) return;
    say(fmt::format("staging {}: {}", progress.source,
                    describe_progress(progress.done, progress.total, progress.seconds)));
  }

  // If srun has no rendezvous, all nodes see that and may go on without it. If this node cannot reach it or loses the
  // connection, the cause may be this node's alone: the other nodes count it as failed.
  void meet() {
    if (call_.srun.port == 0) {
      say_first(
          "the srun side of the plugin did not start for this step: check that the plugin is loaded where srun runs");
      if (call_.on_error == OnError::fail) end_failed();
      return;
    }
    try {
      rendezvous_ = std::make_unique<Rendezvous>(call_.srun, call_.hello, [this](const std::string& why) {
        if (!outcome_sent_) stop(why);
      });
    } catch (const Error& error) {
      stop(error.what());
    }
  }

  // Without a reason, srun prints it.
  [[noreturn]] void stop(const std::string& why) {
    if (!why.empty()) say_first(why);
    end_failed();
  }

  PutOptions options() {
    PutOptions options = call_.put;
    options.limits.notice = options.on.notice = [this](const std::string& line) { say(line); };
    options.copier_timeout = 2 * call_timeout(call_);
    options.peers = peers_.get();
    options.on.waiting = [this](const std::string& source) {
      say(fmt::format("another job is staging {}, waiting for it", source));
    };
    options.on.progress = [this](const std::string& source, const PutProgress& now) {
      progress_.update(source, now);
    };
    if (background_ == nullptr) return options;
    options.on.listed = [this](const Source& source, const std::vector<std::string>& names) {
      folder().expand_folder_link(source, names);
    };
    options.on.file = [this](const std::string& source, const std::string& name, const fs::path& copy) {
      folder().replace_file(source, name, copy);
    };
    return options;
  }

  // Looks at each staged source, which may take long: not with the lock of the job's folder. A source that cannot be seen does
  // not stop the step, which uses its copy.
  void forget_changed() {
    for (const PutResult& result : folder().staged(call_.sources)) {
      std::string now = result.version;
      try {
        now = retry_source(kSourcePause,
                           [&] { return source_version(look_at(resolve_source(result.source))); });
      } catch (const std::exception& error) {
        say(fmt::format("{}; the step uses the copy that an earlier step of this job has staged",
                        error.what()));
      }
      if (now == result.version) continue;
      say(fmt::format("{} changed after an earlier step of this job staged it: it is staged again",
                      result.source));
      folder().forget(result.source);
    }
  }

  // Unchanged sources that an earlier step of this job has staged stay as they are, because other steps may use them.
  std::vector<PutResult> put_alone() {
    if (background_ == nullptr) forget_changed();  // in the background, prepare() has done it
    const std::vector<std::string> wanted = folder().missing(call_.sources);
    return wanted.empty() ? std::vector<PutResult>() : put(wanted, options());
  }

  // Nodes that cooperate all put a source if one of them misses it; those that have it keep their copy. One node looks at
  // the sources for all.
  std::vector<PutResult> put_with_peers() {
    PutOptions all = options();
    for (const PutResult& result : folder().staged(call_.sources)) all.staged[result.source] = result.version;
    all.on.stale = [this](const std::string& source) { folder().forget(source); };
    try {
      return put(call_.sources, all);
    } catch (const OtherRelease& error) {
      if (call_.hello.node_id == 0) print_for_job(error.what());
      peers_.reset();
      return put_alone();
    }
  }

  // Returns whether something was put. Does not hold the lock of the job's folder meanwhile: it may wait for another step of
  // the same job.
  bool put_missing() {
    const std::vector<PutResult> results = peers_ ? put_with_peers() : put_alone();
    JobFolder names = folder();
    std::vector<PutResult> added;
    for (const PutResult& result : results) {
      if (names.has(result)) continue;
      if (!result.note.empty()) say(result.source + ": " + result.note);
      added.push_back(result);
    }
    names.add(added);
    // On many nodes, one line for all of them suffices (agree()).
    constexpr std::uint32_t kManyNodes = 16;
    if (!added.empty() &&
        (call_.hello.nodes <= kManyNodes || call_.hello.node_id == 0 || background_ != nullptr))
      say(summary(added));
    progress_.done("done", names.staged(call_.sources));
    return !added.empty();
  }

  // Leases the copies that earlier steps of the job have staged, because this one uses them too. Hard links
  // stay valid even if the object is removed; links into the shared store do not.
  void lease_staged() {
    cache::Store store(call_.put.cache_dir, system_);
    for (const PutResult& result : folder().staged(call_.sources)) {
      if (result.shared) {
        if (!lease_shared(result.object)) folder().forget(result.source);
        continue;
      }
      if (call_.put.lease.empty()) continue;
      // Another job may be replacing a damaged copy. This job's links stay valid without the lease.
      if (!store.has(result.object)) continue;
      try {
        const cache::ObjectLock lock =
            store.lock(result.object, FileSystem::LockKind::shared, {}, 2 * call_timeout(call_));
        if (store.has(result.object)) store.add_lease(result.object, call_.put.lease);
      } catch (const cache::NoProgress&) {
      }
    }
  }

  // Returns false if the copy is gone or cannot be leased. The source is put again then.
  bool lease_shared(const std::string& object) {
    try {
      const std::optional<cache::Shared> shared = cache::Shared::open(call_.put.shared, system_);
      if (!shared) return false;
      const std::optional<cache::ObjectLock> lock = shared->find(object);
      if (!lock) return false;
      if (!call_.put.lease.empty()) shared->add_lease(object, call_.put.lease);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  // Looks at the sources without holding the lock of the job's folder: a source that does not answer must not block the
  // job's other steps. Also replaces names that lead to files of an unfinished copy, which was not checked as a whole.
  std::vector<std::string> point_at_source() {
    std::vector<SourceLinks> links;
    for (const std::string& source : folder().missing(call_.sources))
      links.push_back(SourceLinks::of(source));
    JobFolder names = folder();
    std::vector<std::string> pointed;
    for (const SourceLinks& source : links) {
      if (names.missing({source.source}).empty())
        continue;  // another step of the job has staged it meanwhile
      if (tasks_run()) {
        names.return_to(source);
      } else {
        names.point_at(source);
      }
      pointed.push_back(source.source);
    }
    return pointed;
  }

  // Staging has failed on this node: makes the names lead to the source, if the user allows it or the tasks read from there
  // already.
  Verdict use_source(const std::string& why) {
    const bool allowed = tasks_run() || (attempt_ != Attempt::report && call_.on_error == OnError::source);
    // If there are no sources, they were refused, and the job has nothing to read from.
    if (!allowed || call_.sources.empty()) return {false, why};
    const std::string line = why + "; the job reads from the source";
    try {
      if (tasks_run()) say(line);  // at once: another step may hold the lock of the job's folder
      folder().check_names(call_.sources);
      // Links into the shared store lead nowhere once the admin's copy is gone.
      for (const PutResult& result : folder().staged(call_.sources)) {
        if (result.shared && !lease_shared(result.object)) folder().forget(result.source);
      }
      const bool all_staged = point_at_source().empty();
      if (!all_staged && !tasks_run()) say(line);
      progress_.done(all_staged ? "done" : "source", folder().staged(call_.sources));
      return {};
    } catch (const std::exception& error) {
      return {false, error.what()};
    }
  }

  // The part of the work that is done before the step starts.
  Verdict prepare() {
    check_shards(call_.sources);
    folder().check_names(call_.sources);
    lease_staged();
    Verdict outcome;
    if (background_ == nullptr) {
      if (put_missing()) outcome.seconds = seconds_between(begin_ns_, monotonic_ns());
    } else {
      forget_changed();
      point_at_source();
      outcome.continues_in_background = true;
    }
    return outcome;
  }

  void join_peers() {
    if (!rendezvous_ || !call_.cooperate) return;
    std::vector<std::string> names = expand_node_list(call_.hello.node_list);
    if (call_.hello.node_id < names.size()) names[call_.hello.node_id] = call_.hello.node;
    peers_ = std::make_unique<PeerGroup>(*rendezvous_, call_.exchange, std::move(names));
    // Usually all nodes lack the network then; lockstep-doctor names each node that does.
    if (!call_.peer_networks.empty() && !peers_->uses_peer_network() && call_.hello.node_id == 0)
      say("no interface has an address in peer_network (lockstep.conf), so the nodes send data to each other over the network that leads to srun: run lockstep-doctor on the nodes");
  }

  Verdict stage() {
    try {
      // In the background the exchange begins when all nodes have started.
      if (background_ == nullptr) join_peers();
      return prepare();
    } catch (const std::exception& error) {
      peers_.reset();  // other nodes get its chunks elsewhere
      const auto stopped = rendezvous_ ? rendezvous_->stopped() : std::nullopt;
      if (stopped) stop(*stopped);  // no node goes on
      return use_source(error.what());
    }
  }

  void agree(const Verdict& outcome) {
    outcome_sent_ = true;
    if (!rendezvous_) {
      if (outcome.good) return;
      say(outcome.why);
      end_failed();
    }
    const Verdict verdict = ask_srun(outcome);
    if (!verdict.good) end_failed();
    if (!verdict.times.empty())
      say(fmt::format("staged on {} nodes in {}", call_.hello.nodes, verdict.times));
    // An earlier process of this node was killed after all nodes had their data.
    if (!outcome.good) progress_.done("done", folder().staged(call_.sources));
  }

  // Asks again if the connection is lost after this node has sent its outcome: the other nodes may already have
  // started the step.
  Verdict ask_srun(const Verdict& outcome) {
    try {
      return rendezvous_->agree(outcome);
    } catch (const Error& lost) {
      try {
        Hello hello = call_.hello;
        hello.replaces_process = true;  // srun may not have noticed that the first connection is lost
        return Rendezvous(call_.srun, hello, [](const std::string&) {}).agree(outcome);
      } catch (const Error&) {
        stop(lost.what());
      }
    }
  }

  // Staging has failed while the tasks run. The other nodes must not wait for this one while it looks at the source.
  void end_staging(const std::string& why) {
    if (rendezvous_) rendezvous_->leave();
    const Verdict outcome = use_source(why);
    if (outcome.good) return;
    say(outcome.why);
    progress_.failed();
  }

  void stage_in_background() {
    try {
      join_peers();
      put_missing();
    } catch (const std::exception& error) {
      peers_.reset();
      end_staging(error.what());
    }
  }

  const StepCall& call_;
  const Attempt attempt_;
  Background* const background_;
  FileSystem& system_;
  const std::uint64_t begin_ns_ = monotonic_ns();
  StepProgress progress_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<PeerGroup> peers_;
  std::atomic<bool> outcome_sent_ = false;
  std::once_flag said_lost_;
};

// The next attempt after one that got stuck.
std::optional<Attempt> next_after(Attempt attempt, bool disk_is_stuck, OnError on_error) {
  if (attempt == Attempt::stage) return disk_is_stuck ? Attempt::report : Attempt::use_source;
  if (attempt == Attempt::use_source && on_error == OnError::source) return Attempt::report;
  return std::nullopt;
}

// Runs an attempt in a child process, which does not return. Returns how it ended, or that it is stuck.
ChildEnd run_in_child(const StepCall& call, Attempt attempt, Background* background) {
  SuperviseOptions options;
  if (call.hello.nodes > 1) options.call_timeout = call_timeout(call);  // a single node delays no other
  options.disk_folders = {call.put.cache_dir, call.put.shared};
  options.disk_name = fmt::format("the local disk of {} ({})", call.hello.node, call.put.cache_dir.string());
  if (const std::optional<ChildEnd> end = run_supervised(options)) return *end;
  if (background != nullptr) background->end_with_step();
  Step(call, attempt, background).run();
  ::_exit(0);
}

// If the child of an attempt is stuck in a system call, or is killed while the step runs, another child reports that and, if
// it can, makes the names lead to the source.
[[noreturn]] void stage_in_children(StepCall call, Attempt attempt, Background* background) {
  const auto finish = [&](int code) {
    if (background != nullptr) background->end(code);
    ::_exit(code);
  };
  for (;;) {
    const ChildEnd end = run_in_child(call, attempt, background);
    const bool tasks_run = background != nullptr && background->released();
    call.problem = end.stuck;
    if (!end.stuck.empty()) {
      end_child(end.pid);
    } else if (attempt == Attempt::stage && tasks_run && end.signal() > 0 && background->step_runs()) {
      call.problem = fmt::format("staging was ended by signal {}", end.signal());
    } else {
      finish(end.code);
    }
    const std::optional<Attempt> next = next_after(attempt, end.disk, call.on_error);
    if (tasks_run && next != Attempt::use_source) {
      print_for_job(fmt::format("{}: {}", call.hello.node, call.problem));
      StepProgress(call.record, call.hello).failed();
      finish(0);
    }
    if (!next) finish(1);
    attempt = *next;
    call.hello.replaces_process = true;
  }
}

}  // namespace

StepCall::StepCall(const StepRequest& request)
    : StepRequest(request),
      hello{job, step, node, node_id, nodes, node_list, component},
      srun{srun_port, srun_hosts, key},
      exchange{key, hello.step_name(), node_id, first_port, last_port} {
  put.cache_dir = store;
  put.limits.quota = quota;
  put.limits.min_free = min_free;
  put.limits.keep = std::chrono::seconds(keep);
  put.shared = shared;
  put.lease = lease;
  put.verify = parse_verify(verify);
  put.bandwidth = bandwidth;
  exchange.chunk_bytes = ChunkPlan::kChunkBytes;
  for (const std::string& text : peer_networks) {
    const std::optional<Subnet> network = Subnet::parse(text);
    if (!network) fail("'{}' must be a network such as 10.1.0.0/16", text);
    exchange.peer_networks.push_back(*network);
  }
}

void stage_step(const StepCall& call) {
  // A write to a closed connection or job output must fail, and must not end the process.
  ::signal(SIGPIPE, SIG_IGN);
  if (!call.cpus.empty()) bind_this_thread(parse_cpu_list(call.cpus));
  const Attempt first = call.problem.empty() ? Attempt::stage : Attempt::use_source;
  Background* const background =
      call.mode == StepMode::background ? &Background::start(UniqueFd(call.watch_fd)) : nullptr;
  if (background == nullptr && call.hello.nodes == 1) return Step(call, first, nullptr).run();
  stage_in_children(call, first, background);
}

}  // namespace lockstep::transfer
