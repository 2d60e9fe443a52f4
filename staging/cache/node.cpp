#include "staging/cache/node.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/error.h"
#include "common/units.h"
#include "staging/cache/as_user.h"
#include "staging/cache/layout.h"
#include "staging/cache/ledger.h"
#include "staging/cache/shared.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;

/// A store below the node's cache.
struct Place {
  fs::path folder;
  uid_t user = 0;
  gid_t group = 0;
};

void check_trusted(FileSystem& system, const fs::path& cache) {
  const auto status = system.status(cache);
  if (!status || !S_ISDIR(status->st_mode)) fail("{} is not a folder", cache.string());
  if (::geteuid() == 0 && (status->st_uid != 0 || (status->st_mode & 022) != 0)) {
    fail("{} belongs to user {} with mode {:o}; the node's cache must be root's, 0755", cache.string(),
         status->st_uid, status->st_mode & 07777U);
  }
}

constexpr std::chrono::seconds kShort{10};

class Node {
 public:
  Node(fs::path cache, FileSystem& system, const NodeOptions& options) : system_(system), options_(options) {
    report_.cache = std::move(cache);
    check_trusted(system_, report_.cache);
    find();
  }

  /// What `work` says of each store, asked as its user.
  template <typename Work>
  void each(const Work& work) {
    for (const Place& place : places_) {
      try {
        const json answer = as_user(place.user, place.group, patience(), [&] { return json(work(place)); });
        add(answer.get<StoreReport>());
      } catch (const std::exception& error) {
        report_.problems.push_back(fmt::format("{}: {}", place.folder.string(), error.what()));
      }
    }
  }

  void survey_all() {
    const bool root = ::geteuid() == 0;
    if (!root) {
      std::erase_if(places_, [](const Place& place) { return place.user != ::geteuid(); });
      try {
        if (Shared::open(report_.cache / kShared, system_))
          report_.stores.push_back(survey_shared(report_.cache / kShared, system_));
      } catch (const Error& error) {
        report_.problems.emplace_back(error.what());
      }
    }
    each([&](const Place& place) {
      Store store(place.folder, system_);
      return survey(store, system_, true);
    });
  }

  void collect_all() {
    prepare_ledger();
    each([&](const Place& place) {
      CollectOptions options = options_.store;
      if (place.folder.filename() == kShared) options.quota = 0;  // what the admin puts there is up to him
      Store store(place.folder, store_options(), system_);
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
  /// Nobody can make many others wait.
  std::chrono::seconds patience() const {
    const bool late = std::chrono::steady_clock::now() - began_ > options_.budget;
    return late ? std::min(options_.patience, kShort) : options_.patience;
  }

  void find() {
    for (const std::string& name : system_.list(report_.cache)) {
      uid_t user = 0;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), user);
      const bool number = error == std::errc() && end == name.data() + name.size();
      if (!number && name != kShared) continue;
      const fs::path folder = report_.cache / name;
      try {
        add_place(folder, user);
      } catch (const std::exception& problem) {
        report_.problems.push_back(fmt::format("{}: {}; it is left alone", folder.string(), problem.what()));
      }
    }
  }

  /// A user may have mounted a file system of his own there, which refuses or never answers: it is asked in
  /// another process.
  void add_place(const fs::path& folder, uid_t user) {
    const json answer = as_user(::geteuid(), ::getegid(), std::min(patience(), kShort), [&] {
      const auto status = system_.status(folder);
      if (!status) return json();
      return json{{"user", status->st_uid}, {"group", status->st_gid}, {"folder", S_ISDIR(status->st_mode)}};
    });
    if (answer.is_null()) return;
    const uid_t owner = answer.at("user");
    if (!answer.at("folder").get<bool>() || owner != user) {
      report_.problems.push_back(
          fmt::format("{} belongs to user {} and is left alone; remove it", folder.string(), owner));
      return;
    }
    places_.push_back({.folder = folder, .user = user, .group = answer.at("group")});
  }

  /// Of the same store a later report takes the place of the earlier one.
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

  StoreOptions store_options() const {
    return {.quota = options_.store.quota,
            .total = options_.total,
            .ledger_folder = report_.cache / kClaims,
            .keep = options_.store.keep};
  }

  /// A file for every user who has a store, and none for who has none any more.
  void prepare_ledger() {
    if (options_.total == 0 || options_.store.dry_run) return;
    for (const Place& place : places_) {
      try {
        Ledger::prepare(report_.cache / kClaims, place.user);
      } catch (const Error& error) {
        report_.problems.emplace_back(error.what());
      }
    }
    try {
      for (const std::string& name :
           system_.list_if_there(report_.cache / kClaims).value_or(std::vector<std::string>())) {
        const bool known =
            name == "lock" || std::any_of(places_.begin(), places_.end(), [&](const Place& place) {
              return std::to_string(place.user) == name;
            });
        if (!known) system_.remove_all(report_.cache / kClaims / name);
      }
    } catch (const Error& error) {
      report_.problems.emplace_back(error.what());
    }
  }

  void evict_to_total() {
    if (options_.total == 0) return;
    const std::uint64_t limit = options_.total - std::min(options_.total, options_.room);
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
        if (gone(store, object)) {
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
    std::erase_if(places_, [&](const Place& place) { return !chosen.contains(place.folder); });
    each([&](const Place& place) {
      Store store(place.folder, store_options(), system_);
      return evict(store, system_, chosen.at(place.folder), why, options_.store);
    });
    if (bytes > limit) {
      report_.problems.push_back(fmt::format(
          "{} over the node's total of {}, and all of it is in use or was used just now; raise the total, or "
          "wait for jobs to end",
          format_bytes(bytes - limit), format_bytes(limit)));
    }
  }

  /// In a dry run what is to go is still there.
  static bool gone(const StoreReport& store, const ObjectReport& object) {
    return std::any_of(store.removed.begin(), store.removed.end(), [&](const Removal& removal) {
      return removal.what == "object" && removal.name == object.object.info.name;
    });
  }

  FileSystem& system_;
  const NodeOptions& options_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  NodeReport report_;
  std::vector<Place> places_;
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
  if (::geteuid() != 0) fail("gc --all works in all users' stores; run it as root");
  Node node(cache, system, options);
  node.collect_all();
  return node.report();
}

}  // namespace lockstep::cache
