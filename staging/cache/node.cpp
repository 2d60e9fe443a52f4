#include "staging/cache/node.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/become_user.h"
#include "common/leaf/descriptors.h"
#include "common/leaf/text.h"
#include "common/process.h"
#include "common/units.h"
#include "staging/cache/layout.h"
#include "staging/cache/shared.h"

namespace lockstep::cache {

namespace {

using nlohmann::json;

// A user can make a store of any size; its report must not fill root's memory.
constexpr std::size_t kMaxAnswerBytes = std::size_t{16} << 20U;
constexpr std::size_t kMaxErrorBytes = 4096;

[[noreturn]] void run_child(int pipe, uid_t user, gid_t group, const std::function<json()>& work) {
  json answer;
  try {
    become_user(user, group);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it must end with its parent, which reads the answer
    ::umask(077);
    answer["result"] = work();
  } catch (const std::exception& error) {
    answer = {{"error", error.what()}};
  }
  try {
    write_all(pipe, answer.dump(-1, ' ', false, json::error_handler_t::replace), "a pipe");
  } catch (const std::exception&) {
    ::_exit(1);
  }
  ::_exit(0);
}

/// Reads everything up to the end. Returns false if that takes too long or is too much.
bool read_answer(int pipe, std::chrono::seconds timeout, std::string& text) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  std::array<char, 65536> buffer{};
  while (text.size() < kMaxAnswerBytes) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd waited{.fd = pipe, .events = POLLIN, .revents = 0};
    if (::poll(&waited, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t got = ::read(pipe, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return false;
}

}  // namespace

json as_user(uid_t user, gid_t group, std::chrono::seconds timeout, const std::function<json()>& work) {
  Pipe pipe;
  const pid_t child = ::fork();
  if (child < 0) fail_errno("cannot start a process for user {}", user);
  if (child == 0) {
    pipe.read_end.reset();
    run_child(pipe.write_end.get(), user, group, work);
  }
  pipe.write_end.reset();
  std::string text;
  const bool whole = read_answer(pipe.read_end.get(), timeout, text);
  if (!whole) {
    end_child(child);  // it may hang in the kernel, on a file system that the user mounted
    fail("no result within {} s: the process was stopped, or the store is very large", timeout.count());
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const json answer = json::parse(text, nullptr, false);
  if (WIFSIGNALED(status)) fail("the process for this store was killed by signal {}", WTERMSIG(status));
  if (!answer.is_object())
    fail("the process for this store ended without an answer (exit code {})", WEXITSTATUS(status));
  if (answer.contains("error")) throw Error(printable(answer.at("error").get<std::string>(), kMaxErrorBytes));
  return answer.at("result");
}

namespace {

namespace fs = std::filesystem;

using nlohmann::json;

/// A store in the node's cache.
struct UserStore {
  fs::path folder;
  uid_t user = 0;
  gid_t group = 0;
};

void check_cache(FileSystem& system, const fs::path& cache) {
  const auto status = system.status(cache);
  if (!status || !S_ISDIR(status->st_mode)) fail("{} is not a folder", cache.string());
  if (::geteuid() == 0 && (status->st_uid != 0 || (status->st_mode & 022) != 0)) {
    fail("{} belongs to user {} with mode {:o}; the node's cache must be root's with mode 0755",
         cache.string(), status->st_uid, status->st_mode & 07777U);
  }
}

constexpr std::chrono::seconds kShortTimeout{10};

class Node {
 public:
  Node(fs::path cache, FileSystem& system, const NodeOptions& options) : system_(system), options_(options) {
    report_.cache = std::move(cache);
    check_cache(system_, report_.cache);
    find();
  }

  /// Runs `work` for each store as its user and adds the reports.
  template <typename Work>
  void each(const Work& work) {
    for (const UserStore& store : stores_) {
      try {
        const json answer = as_user(store.user, store.group, timeout(), [&] { return json(work(store)); });
        add(answer.get<StoreReport>());
      } catch (const std::exception& error) {
        report_.problems.push_back(fmt::format("{}: {}", store.folder.string(), error.what()));
      }
    }
  }

  void survey_all() {
    const bool root = ::geteuid() == 0;
    if (!root) {
      std::erase_if(stores_, [](const UserStore& store) { return store.user != ::geteuid(); });
      try {
        if (Shared::open(report_.cache / kShared, system_))
          report_.stores.push_back(survey_shared(report_.cache / kShared, system_));
      } catch (const Error& error) {
        report_.problems.emplace_back(error.what());
      }
    }
    each([&](const UserStore& user_store) {
      Store store(user_store.folder, system_);
      return survey(store, system_, true);
    });
  }

  void collect_all() {
    each([&](const UserStore& user_store) {
      CollectOptions options = options_.store;
      if (user_store.folder.filename() == kShared) options.quota = 0;  // the admin decides what it holds
      Store store(user_store.folder, system_);
      return collect(store, system_, options);
    });
    evict_to_total();
  }

  NodeReport report() {
    try {
      report_.free = system_.free_bytes(report_.cache);
    } catch (const Error& error) {
      report_.problems.emplace_back(error.what());
    }
    return std::move(report_);
  }

 private:
  /// Shorter once the budget is spent, so that a few slow stores do not delay all others.
  std::chrono::seconds timeout() const {
    const bool late = std::chrono::steady_clock::now() - began_ > options_.budget;
    return late ? std::min(options_.store_timeout, kShortTimeout) : options_.store_timeout;
  }

  void find() {
    for (const std::string& name : system_.list(report_.cache)) {
      const std::optional<uid_t> user = to_number<uid_t>(name);
      if (!user && name != kShared) continue;
      const fs::path folder = report_.cache / name;
      try {
        add_store(folder, user.value_or(0));
      } catch (const std::exception& problem) {
        report_.problems.push_back(fmt::format("{}: {}; skipped", folder.string(), problem.what()));
      }
    }
  }

  /// Uses another process, because a user may have mounted a file system there that refuses access or never answers.
  void add_store(const fs::path& folder, uid_t user) {
    const json answer = as_user(::geteuid(), ::getegid(), std::min(timeout(), kShortTimeout), [&] {
      const auto status = system_.status(folder);
      if (!status) return json();
      return json{{"user", status->st_uid}, {"group", status->st_gid}, {"folder", S_ISDIR(status->st_mode)}};
    });
    if (answer.is_null()) return;
    const uid_t owner = answer.at("user");
    if (!answer.at("folder").get<bool>() || owner != user) {
      report_.problems.push_back(fmt::format(
          "{} belongs to user {}, not to the user of its name: skipped; remove it", folder.string(), owner));
      return;
    }
    stores_.push_back({.folder = folder, .user = user, .group = answer.at("group")});
  }

  /// A later report of the same store replaces the earlier one.
  void add(StoreReport report) {
    const auto earlier = std::find_if(report_.stores.begin(), report_.stores.end(),
                                      [&](const StoreReport& one) { return one.folder == report.folder; });
    if (earlier == report_.stores.end()) {
      report_.stores.push_back(std::move(report));
      return;
    }
    report.removed.insert(report.removed.begin(), earlier->removed.begin(), earlier->removed.end());
    report.problems.insert(report.problems.begin(), earlier->problems.begin(), earlier->problems.end());
    std::sort(report.problems.begin(), report.problems.end());
    report.problems.erase(std::unique(report.problems.begin(), report.problems.end()), report.problems.end());
    *earlier = std::move(report);
  }

  void evict_to_total() {
    if (options_.total == 0) return;
    const std::uint64_t limit = options_.total - std::min(options_.total, options_.reserve);
    std::uint64_t bytes = report_.bytes();
    if (bytes <= limit) return;
    struct Candidate {
      Time last_use;
      std::uint64_t bytes;
      std::string name;
      fs::path folder;
    };
    std::vector<Candidate> candidates;
    for (const StoreReport& store : report_.stores) {
      for (const ObjectReport& object : store.objects) {
        if (would_be_removed(store, object)) {
          bytes -= std::min(bytes, object.object.info.bytes);
          continue;
        }
        if (object.in_use || now() - object.object.last_use < options_.store.keep) continue;
        candidates.push_back(
            {object.object.last_use, object.object.info.bytes, object.object.info.name, store.folder});
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.last_use < b.last_use; });
    std::map<fs::path, std::vector<std::string>> chosen;
    for (const Candidate& candidate : candidates) {
      if (bytes <= limit) break;
      bytes -= std::min(bytes, candidate.bytes);
      chosen[candidate.folder].push_back(candidate.name);
    }
    const std::string why = fmt::format("over the node's total of {}", format_bytes(limit));
    std::erase_if(stores_, [&](const UserStore& store) { return !chosen.contains(store.folder); });
    each([&](const UserStore& user_store) {
      Store store(user_store.folder, system_);
      return evict(store, system_, chosen.at(user_store.folder), why, options_.store);
    });
    if (bytes > limit) {
      report_.problems.push_back(fmt::format(
          "{} over the node's total of {}, but everything is in use or was used recently; raise the total, or wait for jobs to end",
          format_bytes(bytes - limit), format_bytes(limit)));
    }
  }

  /// A dry run reports objects as removed that are still there.
  static bool would_be_removed(const StoreReport& store, const ObjectReport& object) {
    return std::any_of(store.removed.begin(), store.removed.end(), [&](const Removal& removal) {
      return removal.what == "object" && removal.name == object.object.info.name;
    });
  }

  FileSystem& system_;
  const NodeOptions& options_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  NodeReport report_;
  std::vector<UserStore> stores_;
};

}  // namespace

std::uint64_t NodeReport::bytes() const {
  std::uint64_t total = 0;
  for (const StoreReport& store : stores) total = sum(total, store.bytes());
  return total;
}

bool is_node_cache(const fs::path& cache) {
  return fs::is_directory(cache) && !fs::exists(cache / "objects");
}

NodeReport survey_node(const fs::path& cache, FileSystem& system, const NodeOptions& options) {
  Node node(cache, system, options);
  node.survey_all();
  return node.report();
}

NodeReport collect_node(const fs::path& cache, FileSystem& system, const NodeOptions& options) {
  if (::geteuid() != 0) fail("gc --all works in the stores of all users: run it as root");
  Node node(cache, system, options);
  node.collect_all();
  return node.report();
}

}  // namespace lockstep::cache
