// Fuzzes the readers of records and of staging's results, which users own: the exporter, the report and lockstep-top
// read a folder with one valid record and one that the input has changed. The first byte says what the input is:
// staging.json (1), or changes of the record: a new size if 2 is set, and then offset (3 bytes), length (1) and bytes.

#include <fcntl.h>

#include <cstring>

#include "common/files.h"
#include "exporters/node/collector.h"
#include "exporters/record/record.h"
#include "exporters/report/report.h"
#include "exporters/top/live.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/unit/exporters/temporary_folder.h"

using namespace lockstep;

namespace {

constexpr std::uint64_t kMs = 1'000'000;

void write_steps(record::Writer& writer) {
  for (int step = 0; step < 20; ++step) {
    writer.add_phase(record::Phase::data_wait, 10 * kMs);
    writer.add_phase(record::Phase::backward, 60 * kMs);
    writer.add_comm(20 * kMs, 5 * kMs, 0);
    writer.end_step(100 * kMs, 100 * kMs, {.tokens = 4096, .samples = 8, .padding = 512});
  }
}

// The folder of a job step with two ranks on this node; rank 1 is what the input makes of it.
class JobStep {
 public:
  JobStep() {
    std::filesystem::create_directory(folder());
    good_ = std::make_unique<record::Writer>(
        folder() / "rank-000000.record", record::Identity{.job_id = 7, .rank = 0, .size = 2, .node = "n1"});
    write_steps(*good_);
    {
      record::Writer writer(changed(), {.job_id = 7, .rank = 1, .size = 2, .node = "n1", .program = "train"});
      write_steps(writer);
    }
    image_ = read_text_file(changed());
  }

  const std::filesystem::path& root() const { return root_.path(); }
  std::filesystem::path folder() const { return root_ / "7.0"; }

  void write_staging(std::string_view text) const { rewrite(folder() / "staging.json", text); }

  void write_changed(std::span<const std::byte> changes, bool resize) const {
    std::string image = image_;
    const auto next = [&](std::size_t bytes) {
      std::size_t value = 0;
      std::memcpy(&value, changes.data(), std::min(bytes, changes.size()));
      changes = changes.subspan(std::min(bytes, changes.size()));
      return value;
    };
    if (resize) image.resize(next(3) % (2 * image_.size()));
    while (!changes.empty() && !image.empty()) {
      const std::size_t offset = next(3) % image.size();
      const std::size_t length = std::min({next(1), changes.size(), image.size() - offset});
      std::memcpy(&image[offset], changes.data(), length);
      changes = changes.subspan(length);
    }
    rewrite(changed(), image);
  }

 private:
  std::filesystem::path changed() const { return folder() / "rank-000001.record"; }

  static void rewrite(const std::filesystem::path& path, std::string_view text) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    write_all(fd.get(), text, path);
  }

  lockstep::testing::TemporaryFolder root_;
  std::unique_ptr<record::Writer> good_;
  std::string image_;
};

void require_safe(std::string_view text) {
  for (const char c : text) fuzz::require(c == '\n' || static_cast<unsigned char>(c) >= ' ');
}

void require_metrics(const std::string& page) {
  require_safe(page);
  fuzz::require(page.ends_with('\n'));
  for (std::size_t begin = 0; begin < page.size(); begin = page.find('\n', begin) + 1) {
    const std::string line = page.substr(begin, page.find('\n', begin) - begin);
    if (line.starts_with('#')) continue;
    char* end = nullptr;
    std::strtod(line.c_str() + line.rfind(' '), &end);
    fuzz::require(line.starts_with("lockstep_") && *end == '\0');
  }
}

void read_all(const JobStep& step) {
  exporter::Collector collector({.records = step.root(), .cache = {}, .node = "n1", .limits = {}});
  require_metrics(collector.page());
  const report::Run run = report::load({step.folder()});
  require_safe(report::to_text(run));
  require_safe(report::comparison_text(run, run));
  require_safe(report::to_json(run).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  fuzz::require(report::to_html(run).find("<script") == std::string::npos);
  const top::Live live = top::measure(run, 200 * kMs);
  for (const std::string& line : top::to_lines(live, {.columns = 80, .rows = 24})) require_safe(line);
  (void)top::to_json(live).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const JobStep step;
  if (size == 0) return 0;
  if (data[0] == 1) {
    step.write_staging(fuzz::text_of(data + 1, size - 1));
  } else {
    step.write_changed(fuzz::bytes_of(data + 1, size - 1), (data[0] & 2U) != 0);
  }
  return fuzz::run([&] { read_all(step); });
}
