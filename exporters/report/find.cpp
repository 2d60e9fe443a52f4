#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>

#include "common/environment.h"
#include "common/error.h"
#include "common/leaf/text.h"
#include "exporters/record/record.h"
#include "exporters/report/run.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;

struct JobNumber {
  std::uint64_t job = 0;
  std::string step;  // empty: any
};

std::vector<fs::path> entries_of(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> entries;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// Whether a folder of copies has a record of the job. A folder may be used for several jobs, one after another.
bool has_records_of(const fs::path& folder, const JobNumber& number) {
  std::error_code ignored;  // the folder may not exist
  for (const fs::path& file : entries_of(folder, ignored)) {
    if (file.extension() != ".record" || file.filename().string().starts_with('.')) continue;
    try {
      const record::Identity identity = record::Reader(file).identity();
      return identity.job_id == number.job &&
             (number.step.empty() || std::to_string(identity.step_id) == number.step);
    } catch (const Error&) {  // load() says what is wrong with it
      continue;
    }
  }
  return false;
}

// The names that the folders of a job can have. The plugin's folder of a user's records cannot be listed, not even by
// this user, so that users do not see the jobs of others.
std::vector<std::string> possible_steps(const JobNumber& number) {
  if (!number.step.empty()) return {number.step};
  constexpr int kMaxSteps = 1000;
  std::vector<std::string> steps = {"batch", "interactive"};
  for (int step = 0; step < kMaxSteps; ++step) steps.push_back(std::to_string(step));
  return steps;
}

// The folders JOB.STEP in a folder of records. Adds those that this user may not read to `refused`.
std::vector<fs::path> steps_in(const fs::path& records, const JobNumber& number,
                               std::vector<std::string>& refused) {
  std::vector<fs::path> found;
  for (const std::string& step : possible_steps(number)) {
    const fs::path folder = records / fmt::format("{}.{}", number.job, step);
    std::error_code error;
    const std::vector<fs::path> files = entries_of(folder, error);
    if (error == std::errc::permission_denied)
      refused.push_back(fmt::format("{}: {}", folder.string(), error.message()));
    if (std::any_of(files.begin(), files.end(),
                    [](const fs::path& file) { return file.extension() == ".record"; })) {
      found.push_back(folder);
    }
    // The folder of all records may not be entered, or is not there: then no step is.
    if (!error || error == std::errc::no_such_file_or_directory) continue;
    if (::faccessat(AT_FDCWD, records.c_str(), X_OK, AT_EACCESS) != 0) break;
  }
  return found;
}

std::vector<fs::path> folders_of_copies(std::uint64_t job) {
  std::vector<fs::path> folders = {fmt::format("report-{}", job), fmt::format("report/{}", job)};
  if (const auto folder = environment::get("LOCKSTEP_REPORT_DIR")) folders.insert(folders.begin(), *folder);
  return folders;
}

std::vector<fs::path> folders_of_records() {
  std::vector<fs::path> folders = {fmt::format("/run/lockstep/records/{}", ::geteuid()),
                                   fmt::format("/dev/shm/lockstep-{}/records", ::geteuid())};
  if (const auto folder = environment::get("XDG_RUNTIME_DIR")) {
    folders.insert(folders.begin() + 1, fs::path(*folder) / "lockstep/records");
  }
  return folders;
}

std::string list(const std::vector<fs::path>& paths) {
  std::string text;
  for (const fs::path& path : paths) text += (text.empty() ? "" : ", ") + path.string();
  return text;
}

// The user may already have followed this advice.
std::string advice(const JobNumber& number) {
  if (environment::get_or("SLURM_JOB_ID", "") == std::to_string(number.job)) {
    return "no rank records on this node yet, or the job was submitted without --metrics=on";
  }
  return fmt::format("while it runs, look on its nodes with `srun --jobid={} --overlap …`", number.job);
}

}  // namespace

std::vector<fs::path> find_records(const fs::path& argument, Prefer prefer) {
  std::error_code error;
  const std::string text = argument.string();
  const std::size_t dot = text.find('.');
  if (fs::exists(argument, error) || !is_number(text.substr(0, dot))) return {argument};
  const JobNumber number{.job = std::stoull(text.substr(0, dot)),
                         .step = dot == std::string::npos ? "" : text.substr(dot + 1)};
  const std::vector<fs::path> copies = folders_of_copies(number.job);
  const std::vector<fs::path> places = folders_of_records();
  std::vector<std::string> refused;
  std::vector<fs::path> live;  // in the first place that has any
  for (const fs::path& place : places) {
    if (live.empty()) live = steps_in(place, number, refused);
  }
  if (prefer == Prefer::live && !live.empty()) return live;
  for (const fs::path& folder : copies) {
    if (has_records_of(folder, number)) return {folder};
  }
  if (!live.empty()) return live;
  if (!refused.empty())
    fail("this user may not read the records of job {}: {}", text, fmt::join(refused, ", "));
  fail(
      "job {} has no records on this node ({}) and none in {}: {}; for later, set LOCKSTEP_REPORT_DIR in the job",
      text, list(places), list(copies), advice(number));
}

}  // namespace lockstep::report
