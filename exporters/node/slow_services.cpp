#include "exporters/node/slow_services.h"

#include <sys/types.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "common/error.h"
#include "common/leaf/text.h"
#include "common/process.h"

namespace lockstep::exporter {
namespace {

constexpr std::size_t kMaxKeys = 10'000;
constexpr std::chrono::milliseconds kMoment{200};
constexpr std::chrono::seconds kRetry{30};  // after a question without an answer

}  // namespace

struct BackgroundAnswers::State {
  struct Entry {
    std::optional<std::string> answer;
    Clock::time_point ask_again;
    bool asking = false;
  };

  State(Ask function, Clock::duration duration) : ask(std::move(function)), keep(duration) {}

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return stopped || !questions.empty(); });
      if (stopped) return;
      const std::string key = std::move(questions.front());
      questions.pop_front();
      lock.unlock();
      std::optional<std::string> answer;
      try {
        answer = ask(key);
      } catch (const std::exception&) {  // counts as no answer
      }
      lock.lock();
      Entry& entry = entries[key];
      entry.asking = false;
      entry.ask_again = Clock::now() + (answer ? keep : std::min<Clock::duration>(keep, kRetry));
      if (answer) entry.answer = std::move(answer);
      slow = false;
      changed.notify_all();
    }
  }

  const Ask ask;
  const Clock::duration keep;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> questions;
  std::map<std::string, Entry> entries;
  bool slow = false;  // the question that is being asked has taken longer than a moment
  bool stopped = false;
};

BackgroundAnswers::BackgroundAnswers(Ask ask, Clock::duration keep)
    : state_(std::make_shared<State>(std::move(ask), keep)) {
  std::thread([state = state_] { state->run(); }).detach();
}

BackgroundAnswers::~BackgroundAnswers() {
  const std::lock_guard lock(state_->mutex);
  state_->stopped = true;
  state_->changed.notify_all();
}

std::optional<std::string> BackgroundAnswers::get(const std::string& key, Clock::time_point now) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  if (state.entries.size() > kMaxKeys && state.questions.empty()) state.entries.clear();
  const auto [entry, fresh] = state.entries.try_emplace(key);
  if (!entry->second.asking && now >= entry->second.ask_again) {
    entry->second.asking = true;
    state.questions.push_back(key);
    state.changed.notify_all();
  }
  if (fresh && !state.slow) {
    state.slow = !state.changed.wait_for(lock, kMoment, [&] { return !state.entries[key].asking; });
  }
  return state.entries[key].answer;
}

std::optional<std::string> name_of_user(const std::string& uid) {
  const std::optional<uid_t> number = to_number<uid_t>(uid);
  std::string name = number ? user_name(*number) : uid;
  return name == uid ? std::nullopt : std::optional(std::move(name));
}

std::string targets_of(const std::string& sinfo, int port) {
  std::set<std::string> targets;  // sinfo lists a node once for each of its partitions
  std::istringstream lines(sinfo);
  for (std::string node, state; lines >> node >> state;) {
    const bool absent =
        state.ends_with('~') || state.starts_with("powered_down") || state.starts_with("future");
    if (!absent) targets.insert(fmt::format("{}:{}", node, port));
  }
  return nlohmann::json::array({{{"targets", targets}}}).dump();
}

std::string targets_of_slurm(int port) {
  // Without an answer from slurmctld sinfo would wait for minutes.
  const ProcessResult result = run_process(
      {"timeout", "--kill-after=1", "10", "sinfo", "--noheader", "--Node", "--all", "--format=%N %T"});
  constexpr int kTimedOut = 124;
  constexpr int kKilled = 137;
  if (result.exit_code == kTimedOut || result.exit_code == kKilled) {
    fail("sinfo did not answer within 10 s, so the nodes are unknown: check slurmctld");
  }
  if (result.exit_code != 0) {
    fail("sinfo failed, so the nodes are unknown: {}", result.error.substr(0, result.error.find('\n')));
  }
  return targets_of(result.output, port);
}

}  // namespace lockstep::exporter
