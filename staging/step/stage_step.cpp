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
#include "common/cpu_list.h"
#include "common/error.h"
#include "common/file_system_around.h"
#include "staging/cache/layout.h"
#include "staging/cache/shared.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/step/background.h"
#include "staging/step/step_exchange.h"
#include "staging/step/step_folder.h"
#include "staging/step/step_progress.h"
#include "staging/step/step_report.h"
#include "staging/transfer/exchange/circle.h"
#include "staging/transfer/hang_watch.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

class Step {
 public:
  explicit Step(const StepCall& call)
      : call_(call),
        disk_(call.file_system != nullptr ? *call.file_system : FileSystem::real()),
        system_(disk_, [this](bool writes_out) { return watch().held_disk_call(writes_out); }),
        progress_(call.record, call.hello) {}

  void run();

 private:
  bool together() const { return call_.hello.nodes > 1; }
  bool to_source() const { return call_.on_error == "source"; }
  bool in_background() const { return call_.mode == "background"; }
  void meet();
  void say_first(const std::string& why);
  [[noreturn]] void end_failed();
  Verdict prepare();
  Verdict stage();
  Verdict failed(const std::string& why);
  void hangs(HangWatch::Where where, const std::string& why);
  [[noreturn]] void disk_hangs(const std::string& why);
  [[noreturn]] void source_hangs(const std::string& why);
  void last_word();
  std::chrono::milliseconds source_patience() const;
  void agree(const Verdict& here);
  Verdict ask_srun(const Verdict& here);
  void stage_in_background();
  void go_on_from_source(const std::string& why);
  void read_on_from_source();
  void fall_back(const std::string& why);
  std::vector<std::string> point_at_source(bool replace);
  HangWatch& watch() const { return *current_watch_; }
  std::string disk_name() const {
    return fmt::format("the local disk of {} ({})", call_.hello.node, call_.cache);
  }
  StepFolder folder();
  void check_sources();
  PutOptions options();
  std::vector<std::string> missing();
  void put_missing();
  void lease_staged();
  bool lease_shared(const std::string& object);

  const StepCall& call_;
  FileSystem& disk_;
  FileSystemAround system_;  // the same, watched
  StepProgress progress_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<Circle> circle_;
  std::unique_ptr<HangWatch> watch_;  // where others wait for this node
  // Another one where that has told of a call that hangs.
  std::atomic<HangWatch*> current_watch_ = &HangWatch::none();
  Background* background_ = nullptr;
  std::atomic<bool> settled_ = false;  // this node has said how it ended
  std::atomic<bool> leaving_ = false;  // a call hangs, and the watch's thread says how this node ends
  std::once_flag said_lost_;
};

// Where a call hangs, one that hangs too may have the folder's lock for good.
StepFolder Step::folder() {
  const std::shared_ptr<void> call = leaving_ ? watch().held_disk_call() : nullptr;
  return {call_.cache, call_.hello.job, system_};
}

SourceLinks links_of(const std::string& source, HangWatch& watch) {
  const HangWatch::Call call = watch.call(source);
  return SourceLinks::of(source);
}

// Ends the call where the line that says why has been printed, here or by srun. What is half copied stays,
// and the next call goes on from there: a failed step must not wait for a slow read to come back.
void Step::end_failed() {
  progress_.failed();
  if (background_ != nullptr) background_->release(1);
  ::_exit(1);
}

// Without srun nobody prints for all; the step's first node does, so that it is still one line.
void Step::say_first(const std::string& why) {
  std::call_once(said_lost_, [&] {
    if (call_.hello.node_id == 0) say_to_job(call_.hello.node + ": " + why);
  });
}

// All nodes see alike that srun has no rendezvous, and may go on without. That it cannot be reached, or that
// the connection is lost, may be this node's trouble alone: the others take it for its failure.
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
      if (settled_) return;
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
  {
    const HangWatch::Call call = watch().call(fmt::format("{}", fmt::join(call_.sources, ", ")));
    check_shards(call_.sources);
  }
  cache::restore_modes(system_, call_.cache);
  folder().check_names(call_.sources);
}

PutOptions Step::options() {
  PutOptions options;
  options.cache_dir = call_.cache;
  options.file_system = &disk_;  // put() has them watched too
  options.verify = parse_verify(call_.verify);
  options.limits.quota = call_.quota;
  options.limits.total = call_.total;
  options.limits.keep = std::chrono::seconds(call_.keep);
  options.shared = call_.shared;
  options.lease = call_.lease;
  options.bandwidth = call_.bandwidth;
  options.copier_patience = 2 * source_patience();
  options.circle = circle_.get();
  options.watch = watch_.get();
  options.waiting = [this](const std::string& source) {
    say_to_job(fmt::format("{}: another job is staging {}, waiting for it", call_.hello.node, source));
  };
  options.detailed_progress = [this](const std::string& source, const PutProgress& now) {
    progress_.update(source, now);
  };
  if (!in_background()) return options;
  options.listed = [this](const std::string& source, const std::vector<std::string>& names) {
    const SourceLinks links = links_of(source, watch());
    StepFolder here = folder();
    if (!leaving_) here.open_up(links, names);
  };
  // Asked with the lock held: what comes before the names are pointed at the source is pointed there too, and
  // nothing comes after that.
  options.file = [this](const std::string& source, const std::string& name, const fs::path& copy) {
    StepFolder here = folder();
    if (!leaving_) here.replace_file(source, name, copy);
  };
  return options;
}

// What an earlier step of this job has staged is kept as it is, in running steps too. Nodes that put together
// put what any of them misses, so that all take part; those that have it keep theirs.
std::vector<std::string> Step::missing() {
  std::vector<std::string> here = folder().missing(call_.sources);
  if (!circle_) return here;
  std::vector<std::size_t> places;
  for (std::size_t s = 0; s < call_.sources.size(); ++s) {
    if (std::find(here.begin(), here.end(), call_.sources[s]) != here.end()) places.push_back(s);
  }
  std::vector<bool> wanted(call_.sources.size(), false);
  try {
    for (const auto& [node, said] : circle_->gather("missing", places)) {
      for (const std::size_t s : said.get<std::vector<std::size_t>>()) wanted.at(s) = true;
    }
  } catch (const std::out_of_range&) {
    fail("the step's nodes are to stage different sources");
  }
  std::vector<std::string> all;
  for (std::size_t s = 0; s < call_.sources.size(); ++s) {
    if (wanted[s]) all.push_back(call_.sources[s]);
  }
  return all;
}

// The lock on the job's folder is not held meanwhile: another step of the job may be the one that is waited
// for.
void Step::put_missing() {
  const std::vector<std::string> wanted = missing();
  std::vector<PutResult> results;
  if (!wanted.empty()) results = put(wanted, options());
  StepFolder names = folder();
  std::vector<PutResult> added;
  for (const PutResult& result : results) {
    if (names.missing({result.source}).empty()) continue;
    if (!result.note.empty())
      say_to_job(fmt::format("{}: {}: {}", call_.hello.node, result.source, result.note));
    added.push_back(result);
  }
  names.add(added);
  if (!added.empty()) say_to_job(call_.hello.node + ": " + summary(added));
  progress_.done("done", names.staged(call_.sources));
}

// What earlier steps of the job have staged is in use by this one too. Hard links stay whatever becomes of
// the object; links into the shared store lead nowhere once it is removed.
void Step::lease_staged() {
  cache::Store store(call_.cache, system_);
  for (const PutResult& result : folder().staged(call_.sources)) {
    if (result.shared) {
      if (!lease_shared(result.object)) folder().forget(result.source);
      continue;
    }
    if (call_.lease.empty()) continue;
    const cache::Hold lock = store.lock(result.object, FileSystem::LockKind::shared);
    if (store.has(result.object)) store.hold(result.object, call_.lease);
  }
}

// False where it is not there any more, or cannot be kept: then it is put again.
bool Step::lease_shared(const std::string& object) {
  try {
    const std::optional<cache::Shared> shared = cache::Shared::open(call_.shared, system_);
    if (!shared) return false;
    const std::optional<cache::Hold> lock = shared->find(object);
    if (!lock) return false;
    if (!call_.lease.empty()) shared->hold(object, call_.lease);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The lock on the job's folder is not held while the source is asked: where that does not answer, nobody else
// would get it, the thread that says so included.
std::vector<std::string> Step::point_at_source(bool replace) {
  std::vector<SourceLinks> links;
  for (const std::string& source : folder().missing(call_.sources))
    links.push_back(links_of(source, watch()));
  StepFolder names = folder();
  std::vector<std::string> pointed;
  for (const SourceLinks& source : links) {
    if (names.missing({source.source}).empty()) continue;  // another step of the job has staged it meanwhile
    names.point_at(source, replace);
    pointed.push_back(source.source);
  }
  return pointed;
}

void Step::fall_back(const std::string& why) {
  folder().check_names(call_.sources);
  const std::vector<std::string> missing = point_at_source(true);
  if (!missing.empty())
    say_to_job(fmt::format("{}: {}; the job reads from the source", call_.hello.node, why));
  progress_.done(missing.empty() ? "done" : "source", folder().staged(call_.sources));
}

// What this node can say before the step starts.
Verdict Step::prepare() {
  check_sources();
  lease_staged();
  if (!in_background()) {
    put_missing();
    return {};
  }
  point_at_source(false);
  return {true, "", true};
}

Verdict Step::stage() {
  try {
    if (rendezvous_) {
      watch_ = std::make_unique<HangWatch>(
          source_patience(), [this](HangWatch::Where where, const std::string& why) { hangs(where, why); },
          disk_name());
      current_watch_ = watch_.get();
    }
    // In the background the nodes meet for the exchange when all of them have started.
    if (rendezvous_ && call_.cooperate == "on" && !in_background() && call_.problem.empty()) {
      circle_ = std::make_unique<Circle>(*rendezvous_, exchange_of(call_), call_.hello.node);
    }
    return prepare();
  } catch (const std::exception& error) {
    circle_.reset();  // whoever asks this node for chunks turns to the source
    return failed(error.what());
  }
}

// What this node says when its staging has failed.
Verdict Step::failed(const std::string& why) {
  // Without sources it is they that are refused.
  if (!to_source() || call_.sources.empty()) return {false, why};
  try {
    fall_back(why);
    return {};
  } catch (const std::exception& second) {
    return {false, second.what()};
  }
}

std::chrono::milliseconds Step::source_patience() const {
  if (call_.source_patience > 0) return std::chrono::seconds(call_.source_patience);
  return HangWatch::patience(call_.hello.nodes);
}

// Called by the watch while this node's other threads hang. The other nodes get its share elsewhere; this one
// ends here, as for any failure, for who hangs in the kernel cannot be asked to return.
void Step::hangs(HangWatch::Where where, const std::string& why) {
  leaving_ = true;
  if (circle_) circle_->exchange().leave();
  where == HangWatch::Where::disk ? disk_hangs(why) : source_hangs(why);
}

// Nothing can be done without the disk: the job's folder lies there, and what is left of the record may.
void Step::disk_hangs(const std::string& why) {
  progress_.failed();
  if (settled_) {
    say_to_job(fmt::format("{}: {}", call_.hello.node, why));
    last_word();
    ::_exit(0);
  }
  agree({false, why});
  ::_exit(1);
}

// So that nobody waits for another one.
void Step::last_word() {
  try {
    rendezvous_->agree({});
  } catch (const Error&) {
    // srun has ended; then nobody waits.
  }
}

void Step::source_hangs(const std::string& why) {
  if (settled_) {
    say_to_job(fmt::format("{}: {}; the job goes on reading from the source", call_.hello.node, why));
    last_word();
    HangWatch again(
        source_patience(),
        [this](HangWatch::Where, const std::string& still) {
          say_to_job(fmt::format("{}: {}", call_.hello.node, still));
          progress_.failed();
          ::_exit(0);
        },
        disk_name());
    current_watch_ = &again;
    read_on_from_source();
    ::_exit(0);
  }
  HangWatch again(
      source_patience(),
      [&](HangWatch::Where, const std::string& still) {
        agree({false, still});
      },
      disk_name());
  current_watch_ = &again;
  agree(failed(why));
  if (background_ != nullptr) background_->release(0);
  ::_exit(0);
}

void Step::agree(const Verdict& here) {
  settled_ = true;
  if (!rendezvous_) {
    if (here.good) return;
    say_to_job(call_.hello.node + ": " + here.why);
    end_failed();
  }
  const Verdict verdict = ask_srun(here);
  if (!verdict.good) end_failed();
  // The helper before this one was killed after all nodes had their data.
  if (!here.good && !leaving_) progress_.done("done", folder().staged(call_.sources));
}

// Where the connection is lost once this node has told its outcome, the others may have been told already
// that all is well: it asks a second time.
Verdict Step::ask_srun(const Verdict& here) {
  try {
    return rendezvous_->agree(here);
  } catch (const Error& lost) {
    try {
      return Rendezvous(RendezvousAddress::from_environment(), call_.hello, [](const std::string&) {})
          .agree(here);
    } catch (const Error&) {
      say_first(lost.what());
      end_failed();
    }
  }
}

void Step::go_on_from_source(const std::string& why) {
  say_to_job(fmt::format("{}: {}; the job goes on reading from the source", call_.hello.node, why));
  read_on_from_source();
}

// Links that became local files before it failed lead to the source again: what no copy was finished of is
// not known to be right.
void Step::read_on_from_source() {
  try {
    point_at_source(true);
    progress_.done("source", folder().staged(call_.sources));
  } catch (const std::exception& error) {
    say_to_job(fmt::format("{}: {}", call_.hello.node, error.what()));
    progress_.failed();
  }
}

void Step::stage_in_background() {
  try {
    if (rendezvous_ && call_.cooperate == "on") {
      circle_ = std::make_unique<Circle>(*rendezvous_, exchange_of(call_), call_.hello.node);
    }
    put_missing();
  } catch (const std::exception& error) {
    circle_.reset();
    go_on_from_source(error.what());
  }
}

void Step::run() {
  if (!call_.cpus.empty()) bind_this_thread(parse_cpu_list(call_.cpus));
  if (in_background()) {
    background_ = &Background::start(UniqueFd(call_.watch_fd), [this](int signal) {
      go_on_from_source(fmt::format("staging was ended by signal {}", signal));
    });
  }
  if (together()) meet();
  const Verdict here = stage();
  if (watch_) watch_->wait_for_telling();
  agree(here);
  if (background_ == nullptr) return;
  background_->release(0);
  if (here.more) stage_in_background();
  circle_.reset();
  ::_exit(0);  // not by way of main, which ended when release() said so
}

}  // namespace

void say_to_job(const std::string& text) {
  const std::string line = "lockstep: " + text + "\n";
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, line.data(), line.size());
}

void stage_step(const StepCall& call) {
  // Where a connection or the job's output is closed, a call says so; that is no reason to end a step.
  ::signal(SIGPIPE, SIG_IGN);
  Step(call).run();
}

}  // namespace lockstep::transfer
