#include "exporters/node/collector.h"

#include <dirent.h>
#include <fcntl.h>
#include <prometheus/text_serializer.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <sstream>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/leaf/text.h"

namespace lockstep::exporter {
namespace {

// Records read per user, as a multiple of those served: many may belong to jobs that ended long ago.
constexpr std::size_t kLookedAt = 8;

bool is_step(std::string_view text) {  // a number, or Slurm's "batch", "interactive"
  return !text.empty() && text.size() <= 20 &&
         text.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz") == std::string_view::npos;
}

struct JobName {
  std::string job;
  std::string step;
};

std::optional<JobName> parse_job_name(const std::string& name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) return std::nullopt;
  JobName parsed{.job = name.substr(0, dot), .step = name.substr(dot + 1)};
  if (!is_number(parsed.job) || !is_step(parsed.step)) return std::nullopt;
  return parsed;
}

UniqueFd open_folder(int parent, const std::string& name) {
  return UniqueFd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// Up to `limit` names in a folder, latest job first, so that all limits drop the oldest jobs. It remembers no more
// names than it returns, and stops where only a user who wants to delay it has so many.
std::vector<std::string> names_in(int folder, std::size_t limit) {
  UniqueFd copy(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy) return {};
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(copy.get()), &::closedir);
  if (!stream) return {};
  copy.release();  // the stream closes it
  const auto later = [](const std::string& a, const std::string& b) {
    const std::size_t a_digits = a.find('.');
    const std::size_t b_digits = b.find('.');
    return a_digits != b_digits ? a_digits > b_digits : a > b;
  };
  std::vector<std::string> names;  // a heap with the oldest job on top
  constexpr std::size_t kMaxRead = 1U << 20U;
  for (std::size_t read = 0; read < kMaxRead; ++read) {
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    if (entry->d_name[0] == '.') continue;
    names.emplace_back(entry->d_name);
    std::push_heap(names.begin(), names.end(), later);
    if (names.size() <= limit) continue;
    std::pop_heap(names.begin(), names.end(), later);
    names.pop_back();
  }
  std::sort_heap(names.begin(), names.end(), later);
  return names;
}

// About the size of the page, because a text that grows is in memory twice.
constexpr std::size_t kBytesOfRank = 3600;
constexpr std::size_t kBytesBesideRanks = 64 << 10;

constexpr std::chrono::seconds kCacheKeep{30};
constexpr std::chrono::minutes kNameKeep{10};

}  // namespace

struct Scanner::User {
  std::string name;
  std::size_t served = 0;
  std::size_t looked_at = 0;
};

bool Scanner::has_room(const User& user) const {
  return user.served < limits_.files_per_user && served_ < limits_.files;
}

void Scanner::count(User& user) {
  ++user.served;
  ++served_;
}

Scanner::Scanner(std::filesystem::path root, ScanLimits limits) : root_(std::move(root)), limits_(limits) {
  lock_root();
}

// Called before each scan, because the folder may be new since the last one.
void Scanner::lock_root() {
  UniqueFd fd(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat now {};
  struct stat locked {};
  if (!fd || ::fstat(fd.get(), &now) != 0) return;
  const bool same = lock_ && ::fstat(lock_.get(), &locked) == 0 && locked.st_ino == now.st_ino &&
                    locked.st_dev == now.st_dev;
  if (!same && ::flock(fd.get(), LOCK_SH | LOCK_NB) == 0) lock_ = std::move(fd);
}

ScanResult Scanner::scan(std::int64_t now_unix_ns) {
  ScanResult result;
  now_ = now_unix_ns;
  served_ = 0;
  ++scans_;
  lock_root();
  const UniqueFd root(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root && errno != ENOENT) fail_errno("cannot open the records folder {}", root_.string());
  if (root) {
    User owner;  // of job folders that lie directly in the root
    for (const std::string& name : names_in(root.get(), 65536)) {
      if (parse_job_name(name)) {
        scan_job(root.get(), owner, name, result);
      } else if (is_number(name)) {
        scan_user(root.get(), name, result);
      }
    }
  }
  std::erase_if(seen_, [&](const auto& entry) { return entry.second.scan != scans_; });
  std::erase_if(broken_, [&](const auto& entry) { return entry.second != scans_; });
  return result;
}

void Scanner::scan_user(int folder, const std::string& user, ScanResult& result) {
  const UniqueFd fd = open_folder(folder, user);
  if (!fd) {
    ++result.record_errors;
    return;
  }
  User owner{.name = user};
  for (const std::string& name : names_in(fd.get(), 65536)) {
    if (parse_job_name(name)) scan_job(fd.get(), owner, name, result);
  }
}

void Scanner::scan_job(int folder, User& user, const std::string& name, ScanResult& result) {
  const auto broken = broken_.find(user.name + "/" + name);
  if (broken != broken_.end()) broken->second = scans_;
  const UniqueFd fd = open_folder(folder, name);
  if (!fd) {
    if (errno != ENOENT) ++result.record_errors;  // it may have been removed since it was listed
    return;
  }
  const JobName parsed = *parse_job_name(name);
  JobRecords job{.user = user.name, .job = parsed.job, .step = parsed.step, .ranks = {}};
  std::vector<record::Snapshot> ended;
  for (const std::string& file : names_in(fd.get(), limits_.files_per_user * kLookedAt)) {
    const std::optional<int> rank = record::rank_of(file);
    if (!rank) continue;
    if (user.looked_at == limits_.files_per_user * kLookedAt || !has_room(user)) {
      ++result.dropped_files;
      continue;
    }
    ++user.looked_at;
    try {
      record::Snapshot snapshot = record::read_without_steps(fd.get(), file, *rank);
      const auto same_rank = [&](const record::Snapshot& other) {
        return other.identity.rank == *rank;  // rank-3.record and rank-000003.record
      };
      if (std::any_of(job.ranks.begin(), job.ranks.end(), same_rank) ||
          std::any_of(ended.begin(), ended.end(), same_rank)) {
        fail("the rank has two records");
      }
      const bool served = is_still_served(fmt::format("{}/{}/{}", user.name, name, file), snapshot);
      (served ? job.ranks : ended).push_back(std::move(snapshot));
      if (served) count(user);
    } catch (const Error& error) {
      ++result.record_errors;
      report_once(user.name + "/" + name, error.what(), result);
    }
  }
  serve_ended(std::move(ended), user, job);
  std::sort(job.ranks.begin(), job.ranks.end(),
            [](const auto& a, const auto& b) { return a.identity.rank < b.identity.rank; });
  std::optional<StagingRecord> staging;
  try {
    staging = read_staging_record(fd.get(), "staging.json");
  } catch (const Error& error) {
    ++result.staging_errors;
    report_once(user.name + "/" + name, error.what(), result);
  }
  if (job.ranks.empty() && staging) {
    if (!has_room(user) || !staging_is_served(fd.get(), job)) return;
    count(user);
  }
  if (staging)
    result.staging.push_back(
        {.user = job.user, .job = job.job, .step = job.step, .record = *std::move(staging)});
  if (!job.ranks.empty()) result.jobs.push_back(std::move(job));
}

// Serves all ranks of a step as long as one of them is served, because the histograms over all ranks must not fall. A
// record of a run of another size is from an earlier run.
void Scanner::serve_ended(std::vector<record::Snapshot> ended, User& user, JobRecords& job) {
  if (job.ranks.empty()) return;
  const int size = job.ranks.front().identity.size;
  for (record::Snapshot& rank : ended) {
    if (rank.identity.size != size || !has_room(user)) continue;
    job.ranks.push_back(std::move(rank));
    count(user);
  }
}

// A step without ranks is served until its job ends: the plugin then makes a file beside the folder.
bool Scanner::staging_is_served(int folder, const JobRecords& job) const {
  struct stat ended {};
  const std::string mark = fmt::format("../.ended-{}.{}", job.job, job.step);
  if (::fstatat(folder, mark.c_str(), &ended, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT;
  constexpr std::int64_t kSecond = 1'000'000'000;
  return ended.st_mtim.tv_sec >= now_ / kSecond - limits_.hold.count();
}

// The folder's names are root's, so they are safe to print. A step stays in broken_ while its folder exists: a user who
// repeatedly repairs and breaks a file must not fill the log.
void Scanner::report_once(const std::string& job_folder, const std::string& what, ScanResult& result) {
  if (!broken_.try_emplace(job_folder, scans_).second) return;
  result.new_errors.push_back(fmt::format("{}/{}: {}; more errors of this job step are only counted",
                                          root_.string(), job_folder, what));
}

// A killed rank ended when it was first seen dead or, if this exporter never saw it alive, at its last step.
bool Scanner::is_still_served(const std::string& key, const record::Snapshot& snapshot) {
  auto [entry, fresh] = seen_.try_emplace(key);
  Seen& seen = entry->second;
  if (seen.start_unix_ns != snapshot.start_unix_ns) seen = Seen{.start_unix_ns = snapshot.start_unix_ns};
  seen.scan = scans_;
  if (snapshot.alive) {
    seen.alive = true;
    return true;
  }
  if (fresh || seen.ended_unix_ns == 0) {
    const std::int64_t last = seen.alive ? now_ : snapshot.last_unix_ns();
    // A user may have written any number.
    const std::int64_t ended = snapshot.finished_unix_ns != 0 ? snapshot.finished_unix_ns : last;
    seen.ended_unix_ns = std::clamp<std::int64_t>(ended, 0, now_);
  }
  return now_ - seen.ended_unix_ns <= std::chrono::nanoseconds(limits_.hold).count();
}

Collector::Collector(CollectorOptions options)
    : options_(std::move(options)),
      scanner_(options_.records, options_.limits),
      cache_(options_.cache, kCacheKeep),
      names_(&name_of_user, kNameKeep) {
}

std::string Collector::page() {
  const std::lock_guard lock(mutex_);
  try {
    return make();
  } catch (const std::exception&) {
    ++scrape_errors_;
    throw;
  }
}

std::string Collector::make() {
  const std::uint64_t begin = monotonic_ns();
  const auto unix_now = std::chrono::system_clock::now().time_since_epoch();
  const auto now = std::chrono::steady_clock::now();
  ScanResult scan = scanner_.scan(std::chrono::duration_cast<std::chrono::nanoseconds>(unix_now).count());
  std::size_t ranks = 0;
  for (JobRecords& job : scan.jobs) {
    job.user_name = names_.get(job.user, now).value_or("");
    ranks += job.ranks.size();
  }
  dropped_series_ += scan.dropped_files * series_per_rank();
  record_errors_ += scan.record_errors;
  staging_errors_ += scan.staging_errors;
  for (const std::string& line : scan.new_errors) say(line);
  const CacheUsage& usage = cache_.usage(now);
  if (cache_.error() != cache_error_ && !cache_.error().empty()) say(cache_.error());
  cache_error_ = cache_.error();
  scrape_seconds_ = seconds_between(begin, monotonic_ns());

  std::string text;
  text.reserve(kBytesBesideRanks + ranks * kBytesOfRank);
  std::ostringstream page(std::move(text));
  std::vector<prometheus::MetricFamily> one(1);
  FamilyStream stream([&](prometheus::MetricFamily&& family) {
    one[0] = std::move(family);
    prometheus::TextSerializer().Serialize(page, one);
    one[0] = {};
  });
  stream_rank_families(scan.jobs, options_.node, stream);
  add_staging(scan.staging, options_.node, stream);
  add_cache(usage, {{"node", options_.node}}, stream);
  add_own(ranks, stream);
  stream.finish();
  return std::move(page).str();
}

void Collector::add_own(std::size_t ranks, FamilyStream& stream) const {
  using prometheus::MetricType;
  const Labels node{{"node", options_.node}};
  const auto family = [&](const char* name, MetricType type, const char* help, double value) {
    stream.family(name, type, help);
    stream.add(node, value);
  };
  family("lockstep_exporter_ranks", MetricType::Gauge, "Ranks served now.", static_cast<double>(ranks));
  family("lockstep_exporter_scrape_seconds", MetricType::Gauge, "Time to read the records for this scrape.",
         scrape_seconds_);
  family("lockstep_exporter_dropped_series_total", MetricType::Counter,
         "Series that were not served because there were too many records.",
         static_cast<double>(dropped_series_));
  stream.family("lockstep_exporter_errors_total", MetricType::Counter, "Read errors by kind.");
  const auto errors = [&](const char* what, std::uint64_t count) {
    stream.add(with(node, "what", what), static_cast<double>(count));
  };
  errors("record", record_errors_);
  errors("staging", staging_errors_);
  errors("cache", cache_.errors());
  errors("scrape", scrape_errors_);
}

}  // namespace lockstep::exporter
