#include "exporters/report/find.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "common/environment.h"
#include "common/error.h"
#include "exporters/record/reader.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;

struct JobNumber {
  std::uint64_t job = 0;
  std::string step;  // empty: any
};

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 18 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// Whether a folder of copies has a record of the job. A folder may be used for several jobs, one after another.
bool has_records_of(const fs::path& folder, const JobNumber& number) {
  for (const fs::path& file : entries_of(folder)) {
    if (file.extension() != ".record" || file.filename().string().starts_with('.')) continue;
    try {
      const record::Identity identity = record::Reader(file).identity();
      return identity.job_id == number.job &&
             (number.step.empty() || std::to_string(identity.step_id) == number.step);
    } catch (const record::RecordError&) {  // load() says what is wrong with it
      continue;
    }
  }
  return false;
}

// The folders JOB.STEP in a folder of records.
std::vector<fs::path> steps_in(const fs::path& records, const JobNumber& number) {
  const std::string prefix = std::to_string(number.job) + ".";
  std::vector<fs::path> found;
  for (const fs::path& folder : entries_of(records)) {
    const std::string name = folder.filename().string();
    if (number.step.empty() ? name.starts_with(prefix) : name == prefix + number.step) {
      const std::vector<fs::path> files = entries_of(folder);
      if (std::any_of(files.begin(), files.end(),
                      [](const fs::path& file) { return file.extension() == ".record"; })) {
        found.push_back(folder);
      }
    }
  }
  return found;
}

std::string joined(const std::vector<fs::path>& paths) {
  std::string text;
  for (const fs::path& path : paths) text += (text.empty() ? "" : ", ") + path.string();
  return text;
}

}  // namespace

std::vector<fs::path> find_records(const fs::path& argument) {
  std::error_code error;
  const std::string text = argument.string();
  const std::size_t dot = text.find('.');
  if (fs::exists(argument, error) || !is_number(text.substr(0, dot))) return {argument};
  const JobNumber number{.job = std::stoull(text.substr(0, dot)),
                         .step = dot == std::string::npos ? "" : text.substr(dot + 1)};
  std::vector<fs::path> copies = {fmt::format("report-{}", number.job), fmt::format("report/{}", number.job)};
  if (const auto folder = environment::get("LOCKSTEP_REPORT_DIR")) copies.insert(copies.begin(), *folder);
  for (const fs::path& folder : copies) {
    if (has_records_of(folder, number)) return {folder};
  }
  std::vector<fs::path> places = {fmt::format("/run/lockstep/records/{}", ::geteuid()),
                                  fmt::format("/dev/shm/lockstep-{}/records", ::geteuid())};
  if (const auto folder = environment::get("XDG_RUNTIME_DIR")) {
    places.insert(places.begin() + 1, fs::path(*folder) / "lockstep/records");
  }
  for (const fs::path& place : places) {
    if (std::vector<fs::path> steps = steps_in(place, number); !steps.empty()) return steps;
  }
  fail(
      "job {} has no records on this node ({}) and none in {}: on its nodes, while it runs, use `srun "
      "--jobid={} "
      "--overlap lockstep-report {}`; for later, set LOCKSTEP_REPORT_DIR in the job",
      text, joined(places), joined(copies), number.job, text);
}

}  // namespace lockstep::report
