#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>

#include "common/error.h"
#include "common/files.h"
#include "exporters/families/rank_families.h"
#include "exporters/node/collector.h"
#include "exporters/record/record.h"
#include "tests/unit/exporters/parsed_page.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::exporter {
namespace {

using lockstep::testing::ParsedPage;
using record::Phase;
using record::Writer;

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t unix_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

class ExporterTest : public ::testing::Test {
 protected:
  std::filesystem::path job_folder(const std::string& name) const {
    auto folder = root_.path() / name;
    std::filesystem::create_directories(folder);
    return folder;
  }

  std::unique_ptr<Writer> rank_of(const std::string& job, int rank, int size = 4) const {
    const record::Identity identity{.rank = rank, .size = size, .node = "forged", .program = "train"};
    return std::make_unique<Writer>(job_folder(job) / fmt::format("rank-{:06}.record", rank), identity);
  }

  ParsedPage collect(const ScanLimits& limits = {}) const {
    Collector collector({.records = root_.path(), .cache = {}, .node = "n1", .limits = limits});
    return lockstep::testing::parse_page(collector.page());
  }

  lockstep::testing::TemporaryFolder root_;
};

TEST_F(ExporterTest, ServesARanksNumbersUnderTheJobOfItsFolder) {
  const auto rank = rank_of("1000/77.0", 3);
  rank->add_phase(Phase::forward, 30 * kMs);
  rank->add_phase(Phase::comm_exposed, 20 * kMs);
  rank->add_comm(15 * kMs, 5 * kMs, 1);
  rank->end_step(100 * kMs, 0, {.tokens = 512, .samples = 3, .padding = 8});

  const ParsedPage page = collect();
  EXPECT_EQ(page.wrong, std::vector<std::string>());
  ASSERT_EQ(page.samples.at("lockstep_step_seconds_count").size(), 1);
  EXPECT_EQ(
      page.samples.at("lockstep_step_seconds_count")[0].labels,
      (std::map<std::string, std::string>{
          {"job_id", "77"}, {"step_id", "0"}, {"rank", "3"}, {"node", "n1"}}));  // not what the record claims
  EXPECT_EQ(page.value("lockstep_step_seconds_count"), 1);
  EXPECT_DOUBLE_EQ(page.value("lockstep_step_seconds_sum"), 0.1);
  for (const auto& bucket : page.samples.at("lockstep_step_seconds_bucket")) {
    const std::string& bound = bucket.labels.at("le");
    EXPECT_EQ(bucket.value, bound == "+Inf" || std::stod(bound) >= 0.1 ? 1 : 0) << bound;
  }
  EXPECT_DOUBLE_EQ(page.value("lockstep_phase_seconds_total", "phase", "forward"), 0.03);
  EXPECT_DOUBLE_EQ(page.value("lockstep_phase_seconds_total", "phase", "other"), 0.05);
  EXPECT_EQ(page.value("lockstep_steps_total"), 1);
  EXPECT_EQ(page.value("lockstep_tokens_total"), 512);
  EXPECT_EQ(page.value("lockstep_samples_total"), 3);
  EXPECT_EQ(page.value("lockstep_padding_tokens_total"), 8);
  EXPECT_DOUBLE_EQ(page.value("lockstep_comm_transfer_seconds_total"), 0.015);
  EXPECT_DOUBLE_EQ(page.value("lockstep_comm_wait_seconds_total"), 0.005);
  EXPECT_EQ(page.value("lockstep_rank_up"), 1);
  EXPECT_EQ(page.value("lockstep_exporter_ranks"), 1);
  EXPECT_EQ(page.label("lockstep_job_info", "user"), "1000");
  EXPECT_EQ(page.label("lockstep_job_info", "program"), "train");
  EXPECT_EQ(page.label("lockstep_job_info", "ranks"), "4");
}

TEST_F(ExporterTest, ABrokenRecordIsCountedInEachScrapeAndReportedOnce) {
  const auto rank = rank_of("1000/7.0", 0);
  write_file_atomically(root_ / "1000/7.0/rank-000001.record", "half");
  write_file_atomically(root_ / "1000/7.0/rank-000002.record", "half");
  std::vector<std::string> said;
  Collector collector(
      {.records = root_.path(), .cache = {}, .node = "n1", .limits = {}, .say = [&](const std::string& line) {
         said.push_back(line);
       }});
  for (int scrape = 1; scrape <= 3; ++scrape) {
    const ParsedPage page = lockstep::testing::parse_page(collector.page());
    EXPECT_EQ(page.value("lockstep_exporter_errors_total", "what", "record"), 2 * scrape);
    EXPECT_EQ(page.value("lockstep_exporter_ranks"), 1);
  }
  ASSERT_EQ(said.size(), 1);
  EXPECT_THAT(said[0], ::testing::HasSubstr("1000/7.0: cannot read the record rank-00000"));
}

TEST_F(ExporterTest, ABrokenStagingFileIsReportedOnceAndBrieflyHoweverOftenItIsRepaired) {
  const std::filesystem::path file = job_folder("1000/7.0") / "staging.json";
  Scanner scanner(root_.path(), {});
  std::vector<std::string> said;
  const auto scan = [&](const std::string& content) {
    write_file_atomically(file, content);
    const ScanResult result = scanner.scan(unix_now());
    said.insert(said.end(), result.new_errors.begin(), result.new_errors.end());
  };
  for (int i = 0; i < 2; ++i) {
    scan("{\"sources\": \"" + std::string(900'000, 'x'));
    scan(R"({"sources":[]})");
  }
  ASSERT_EQ(said.size(), 1);
  EXPECT_LT(said[0].size(), 500);
  std::filesystem::remove_all(file.parent_path());
  scanner.scan(unix_now());
  job_folder("1000/7.0");
  scan("{");
  EXPECT_EQ(said.size(), 2) << "a new folder of this name";
}

TEST_F(ExporterTest, AStagingFileOfBracketsIsRefusedForItsDepth) {
  write_file_atomically(root_ / "staging.json", std::string(1'000'000, '['));
  EXPECT_THAT([&] { read_staging_record(root_ / "staging.json"); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("nested deeper than 8 levels")));
}

// A user may write any times into the record and touch files.
TEST_F(ExporterTest, ImpossibleTimesDoNotKeepARecordForLong) {
  rank_of("1000/7.0", 0).reset();
  const auto path = root_ / "1000/7.0/rank-000000.record";
  for (const std::int64_t finished : {INT64_MIN, INT64_MAX}) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offsetof(record::File, live) + offsetof(record::Live, finished_unix_ns));
    file.write(reinterpret_cast<const char*>(&finished), sizeof(finished));
    file.close();
    Scanner scanner(root_.path(), {});
    EXPECT_EQ(scanner.scan(unix_now()).jobs.size(), finished > 0 ? 1 : 0);
    EXPECT_TRUE(scanner.scan(unix_now() + 100 * kSecond).jobs.empty());
  }
}

TEST_F(ExporterTest, UsersHaveTheirNamesBesideTheirNumbers) {
  const auto root = rank_of("0/7.0", 0);
  EXPECT_EQ(collect().label("lockstep_job_info", "user"), "0");
  EXPECT_EQ(collect().label("lockstep_job_info", "user_name"), "root");
  const auto nobody_known = rank_of("4000000000/6.0", 0);
  std::map<std::string, std::string> names;
  for (const auto& sample : collect().samples.at("lockstep_job_info")) {
    names[sample.labels.at("user")] = sample.labels.at("user_name");
  }
  EXPECT_EQ(names, (std::map<std::string, std::string>{{"0", "root"}, {"4000000000", ""}}));
}

TEST_F(ExporterTest, PhaseHistogramsAreOfAllRanksOfTheStepOnTheNode) {
  std::vector<std::unique_ptr<Writer>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(rank_of("1000/7.0", rank));
    ranks.back()->add_phase(Phase::forward, (rank == 2 ? 400 : 30) * kMs);
    ranks.back()->end_step(500 * kMs, 0, {});
  }
  const ParsedPage page = collect();
  std::map<std::string, double> forward;
  for (const auto& bucket : page.samples.at("lockstep_phase_duration_seconds_bucket")) {
    EXPECT_FALSE(bucket.labels.contains("rank"));
    if (bucket.labels.at("phase") == "forward") forward[bucket.labels.at("le")] = bucket.value;
    EXPECT_NE(bucket.labels.at("phase"), "checkpoint");  // no rank has spent time in it
  }
  EXPECT_EQ(forward.at("0.02"), 0);
  EXPECT_EQ(forward.at("0.05"), 2);
  EXPECT_EQ(forward.at("0.2"), 2);
  EXPECT_EQ(forward.at("0.5"), 3);
  EXPECT_EQ(forward.at("+Inf"), 3);
  EXPECT_DOUBLE_EQ(page.value("lockstep_phase_duration_seconds_sum", "phase", "forward"), 0.46);
}

// Otherwise the histograms over all ranks would fall, which Prometheus takes for a restart.
TEST_F(ExporterTest, AnEndedRankIsServedAsLongAsAnotherRankOfItsStep) {
  const auto alive = rank_of("1000/7.0", 0);
  rank_of("1000/7.0", 1)->end_step(kMs, 0, {});
  rank_of("1000/7.0", 2, 8)->end_step(kMs, 0, {});  // of an earlier run with more ranks
  Scanner scanner(root_.path(), {.hold = std::chrono::seconds(60)});
  scanner.scan(unix_now());
  const ScanResult later = scanner.scan(unix_now() + 3600 * kSecond);
  ASSERT_EQ(later.jobs.size(), 1);
  ASSERT_EQ(later.jobs[0].ranks.size(), 2);
  EXPECT_TRUE(later.jobs[0].ranks[0].alive);
  EXPECT_FALSE(later.jobs[0].ranks[1].alive);
}

TEST_F(ExporterTest, EachFamilyAppearsOnceWithTheSeriesOfAllRanks) {
  std::vector<std::unique_ptr<Writer>> ranks;
  ranks.reserve(4);
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(rank_of(rank < 2 ? "1000/7.0" : "1001/8.0", rank));
  std::set<std::string> names;
  for (const std::string& name : collect().families) EXPECT_TRUE(names.insert(name).second) << name;
  EXPECT_EQ(collect().samples.at("lockstep_steps_total").size(), 4);
  EXPECT_EQ(collect().samples.at("lockstep_phase_seconds_total").size(), 4 * record::kPhases);
}

TEST_F(ExporterTest, SlowRankHasAHighStragglerScore) {
  std::vector<std::unique_ptr<Writer>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(rank_of("1000/7.0", rank));
    const std::uint64_t own = (rank == 1 ? 150 : 100) * kMs;  // the others wait for rank 1
    ranks.back()->add_phase(Phase::forward, own);
    ranks.back()->add_phase(Phase::comm_exposed, 150 * kMs - own);
    ranks.back()->end_step(150 * kMs, 0, {});
  }
  const ParsedPage page = collect();
  EXPECT_DOUBLE_EQ(page.value("lockstep_straggler_score", "rank", "0"), 1.0);
  EXPECT_DOUBLE_EQ(page.value("lockstep_straggler_score", "rank", "1"), 1.5);
}

TEST_F(ExporterTest, ServesTheRankThatANodesRanksWaitForLongest) {
  std::vector<std::unique_ptr<Writer>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(rank_of("1000/7.0", rank));
    ranks.back()->add_comm(50 * kMs, 30 * kMs, 3);
    ranks.back()->end_step(100 * kMs, 0, {});
    ranks.back()->add_comm(50 * kMs, (rank == 0 ? 10 : 0) * kMs, 1);
    ranks.back()->end_step(100 * kMs, 0, {});
  }
  const auto alone = rank_of("1000/8.0", 0, 1);
  alone->end_step(kMs, 0, {});
  const ParsedPage page = collect();
  ASSERT_EQ(page.samples.at("lockstep_waited_for_seconds").size(), 1);
  const std::map<std::string, std::string> labels{{"job_id", "7"}, {"step_id", "0"}, {"node", "n1"}};
  EXPECT_EQ(page.samples.at("lockstep_waited_for_seconds")[0].labels, labels);
  EXPECT_DOUBLE_EQ(page.value("lockstep_waited_for_seconds"), 0.015);
  // A value: as a label, each rank that is late once would leave a series.
  ASSERT_EQ(page.samples.at("lockstep_late_rank").size(), 1);
  EXPECT_EQ(page.samples.at("lockstep_late_rank")[0].labels, labels);
  EXPECT_EQ(page.value("lockstep_late_rank"), 3);
}

TEST_F(ExporterTest, JobFoldersMayLieInTheRootAndStepsMayHaveNames) {
  const auto first = rank_of("7.batch", 0);
  const ParsedPage page = collect();
  EXPECT_EQ(page.label("lockstep_steps_total", "step_id"), "batch");
}

TEST_F(ExporterTest, FinishedRankIsServedUntilTheHoldTimeIsOver) {
  rank_of("1000/7.0", 0)->end_step(kMs, 0, {});
  Scanner scanner(root_.path(), {.hold = std::chrono::seconds(60)});
  const std::int64_t now = unix_now();
  EXPECT_EQ(scanner.scan(now).jobs.size(), 1);
  EXPECT_EQ(scanner.scan(now + 59 * kSecond).jobs.size(), 1);
  EXPECT_EQ(scanner.scan(now + 61 * kSecond).jobs.size(), 0);
}

TEST_F(ExporterTest, HoldTimeOfADeadRankBeginsWhenItIsSeenDead) {
  auto rank = rank_of("1000/7.0", 0);
  const auto file = rank->path();
  Scanner scanner(root_.path(), {.hold = std::chrono::seconds(60)});
  const std::int64_t start = unix_now();
  const std::int64_t hour = start + 3600 * kSecond;
  ASSERT_EQ(scanner.scan(start).jobs.size(), 1);
  EXPECT_EQ(scanner.scan(hour).jobs.size(), 1);  // it is alive, however old its last step is
  // A copy of the file acts as the record of a killed rank: it has no lock and never finished.
  const std::string content = read_text_file(file);
  rank.reset();
  write_file_atomically(file, content);
  EXPECT_EQ(scanner.scan(hour).jobs.size(), 1);
  EXPECT_EQ(scanner.scan(hour + 59 * kSecond).jobs.size(), 1);
  EXPECT_EQ(scanner.scan(hour + 61 * kSecond).jobs.size(), 0);
  // An exporter that started after the death uses the last step.
  EXPECT_EQ(Scanner(root_.path(), {.hold = std::chrono::seconds(60)}).scan(hour).jobs.size(), 0);
}

TEST_F(ExporterTest, TooManyRecordsAreCountedAndNotServed) {
  std::vector<std::unique_ptr<Writer>> ranks;
  ranks.reserve(7);
  for (int rank = 0; rank < 6; ++rank) ranks.push_back(rank_of("1000/7.0", rank, 6));
  ranks.push_back(rank_of("1001/8.0", 0));
  const ParsedPage page = collect({.files = 100, .files_per_user = 4});
  EXPECT_EQ(page.value("lockstep_exporter_ranks"), 5);  // the other user's record is still served
  EXPECT_EQ(page.value("lockstep_exporter_dropped_series_total"), 2 * static_cast<double>(series_per_rank()));
  EXPECT_EQ(collect({.files = 3}).value("lockstep_exporter_ranks"), 3);
}

// The number of names that are remembered is 8 here. Those that count must be among them in any order of the folder.
TEST_F(ExporterTest, AFolderWithManyOtherFilesStillServesItsRecords) {
  const auto folder = job_folder("1000/7.0");
  for (int other = 0; other < 20; ++other) std::ofstream(folder / fmt::format("{}.x", other)).close();
  const auto rank = rank_of("1000/7.0", 3);
  for (int other = 20; other < 40; ++other) std::ofstream(folder / fmt::format("{}.x", other)).close();
  EXPECT_EQ(collect({.files_per_user = 1}).value("lockstep_exporter_ranks"), 1);
}

TEST_F(ExporterTest, ServesWhatARanksProcessUses) {
  const auto rank = rank_of("1000/7.0", 0);
  EXPECT_FALSE(collect().has("lockstep_memory_bytes")) << "before the first sample";
  rank->add_loader_work({.build_ns = 5 * kMs, .user_ns = 3 * kMs, .system_ns = kMs});
  rank->add_collective(record::Collective::all_reduce, 6000, 2 * kMs);
  rank->set_resources({.sampled_ns = 1,
                       .user_ns = 2000 * kMs,
                       .system_ns = 500 * kMs,
                       .memory_bytes = 4096,
                       .memory_peak_bytes = 8192,
                       .memory_limit_bytes = 16384,
                       .major_faults = 3,
                       .read_bytes = 77,
                       .read_calls = 5,
                       .involuntary_switches = 9});
  const auto page = collect();
  const std::map<std::string, double> values = {
      {"cpu_user_seconds_total", 2},        {"cpu_system_seconds_total", 0.5},
      {"loader_cpu_seconds_total", 0.004},  {"memory_bytes", 4096},
      {"memory_peak_bytes", 8192},          {"memory_limit_bytes", 16384},
      {"major_page_faults_total", 3},       {"process_read_bytes_total", 77},
      {"process_reads_total", 5},           {"involuntary_switches_total", 9},
      {"collective_bus_bytes_total", 9000}, {"collective_seconds_total", 0.002}};  // of 4 ranks
  for (const auto& [name, value] : values) EXPECT_DOUBLE_EQ(page.value("lockstep_" + name), value) << name;
  EXPECT_FALSE(page.has("lockstep_job_gpus_granted")) << "no GPU is granted";
}

// Files do not count, what the ranks share counts once, and a rank in another cgroup has another limit.
TEST_F(ExporterTest, TheMemoryOfAJobIsThatOfItsFullestCgroup) {
  const auto rank = [&](int number, std::uint64_t bytes, std::uint64_t group) {
    auto writer = rank_of("1000/7.0", number);
    writer->set_resources({.sampled_ns = 1,
                           .memory_bytes = bytes,
                           .memory_file_bytes = 100,
                           .memory_shared_bytes = 1000,
                           .memory_limit_bytes = 10'000,
                           .memory_group = group,
                           .gpu = {.granted = 3}});
    return writer;
  };
  const auto first = rank(0, 3100, 1);
  const auto second = rank(1, 4100, 1);
  const auto third = rank(2, 2100, 2);
  const auto page = collect();
  EXPECT_DOUBLE_EQ(page.value("lockstep_job_memory_ratio"), 0.6);  // 2000 + 3000 + 1000 of 10000
  EXPECT_EQ(page.value("lockstep_job_gpus_granted"), 3);
}

TEST_F(ExporterTest, ServesTheGpuOfARank) {
  const auto rank = rank_of("1000/7.0", 0);
  rank->set_resources({.sampled_ns = 1});
  EXPECT_FALSE(collect().has("lockstep_gpu_info")) << "without a GPU";
  record::Gpu gpu{.uuid = {0x1122334455667788, 0x99aabbccddeeff00}, .memory_bytes = 3};
  gpu.memory_total_bytes = 9;
  gpu.measured_ns = 10'000 * kMs;
  gpu.busy_ns = 7'000 * kMs;
  gpu.slowed_ns = 500 * kMs;
  gpu.sm_mhz = 1410;
  gpu.energy_mj = 4500;
  gpu.ecc_uncorrected = 2;
  gpu.xid_errors = 4;
  gpu.allocator_retries = 5;
  gpu.allocator_unused_bytes = 6;
  rank->set_resources({.sampled_ns = 1, .gpu = gpu});
  const auto page = collect();
  EXPECT_EQ(page.value("lockstep_gpu_info", "uuid", "GPU-11223344-5566-7788-99aa-bbccddeeff00"), 1);
  const std::map<std::string, double> values = {
      {"memory_bytes", 3},          {"memory_total_bytes", 9},      {"measured_seconds_total", 10},
      {"busy_seconds_total", 7},    {"slowed_seconds_total", 0.5},  {"sm_clock_hertz", 1.41e9},
      {"energy_joules_total", 4.5}, {"ecc_corrected_errors", 0},    {"ecc_uncorrected_errors", 2},
      {"xid_errors_total", 4},      {"allocator_retries_total", 5}, {"allocator_unused_bytes", 6}};
  for (const auto& [name, value] : values)
    EXPECT_DOUBLE_EQ(page.value("lockstep_gpu_" + name), value) << name;
  EXPECT_FALSE(page.has("lockstep_gpu_power_watts")) << "the GPU does not tell its power";
}

TEST_F(ExporterTest, ADroppedRankCountsAsAllItsSeries) {
  const auto rank = rank_of("1000/7.0", 0);
  rank->add_comm(1, 0, -1);  // so that the rank has all its series
  for (std::size_t i = 0; i < record::kCollectives; ++i)
    rank->add_collective(static_cast<record::Collective>(i), 1, 1);
  record::Gpu gpu{.uuid = {1, 1}, .memory_total_bytes = 1, .measured_ns = 1, .sm_mhz = 1, .memory_mhz = 1};
  gpu.power_mw = gpu.energy_mj = 1;
  rank->set_resources({.sampled_ns = 1, .gpu = gpu});
  rank->end_step(kMs, 0, {});
  std::size_t series = 0;
  for (const auto& [name, samples] : collect().samples) {
    for (const auto& sample : samples) series += sample.labels.contains("rank") ? 1 : 0;
  }
  EXPECT_EQ(series, series_per_rank());
}

TEST_F(ExporterTest, BrokenAndHostileFilesOnlyCountAsErrors) {
  const auto good = rank_of("1000/7.0", 0);
  const auto folder = job_folder("1000/7.0");
  write_file_atomically(folder / "rank-000001.record", "nonsense");
  std::filesystem::create_symlink("/etc/passwd", folder / "rank-000002.record");
  ASSERT_EQ(::mkfifo((folder / "rank-000003.record").c_str(), 0600), 0);
  std::filesystem::copy_file(good->path(), folder / "rank-000004.record");  // another rank's numbers
  std::filesystem::copy_file(good->path(), folder / "rank-0.record");       // a second record of rank 0
  std::filesystem::create_directory_symlink("/", root_ / "1000/9.0");
  std::filesystem::create_directory_symlink("/", root_ / "1234");
  write_file_atomically(folder / "staging.json", "{\"sources\":[{\"bytes\":-1}]}");
  const ParsedPage page = collect();
  EXPECT_EQ(page.value("lockstep_exporter_ranks"), 1);
  EXPECT_EQ(page.value("lockstep_exporter_errors_total", "what", "record"), 7);
  EXPECT_EQ(page.value("lockstep_exporter_errors_total", "what", "staging"), 1);
}

TEST_F(ExporterTest, AProgramNameCannotBreakThePage) {
  const Writer rank(job_folder("1000/7.0") / "rank-000000.record", {.program = "a\"b\\c\nd\xff"});
  EXPECT_EQ(collect().label("lockstep_job_info", "program"), "a_b_c_d_");
}

TEST_F(ExporterTest, ANegativeNanInARecordIsServedAsPrometheusReadsIt) {
  const auto rank = rank_of("1000/7.0", 0);
  rank->set_loss_scale(std::copysign(std::nan(""), -1.0));
  rank->end_step(kMs, 0, {});
  Collector collector({.records = root_.path(), .cache = {}, .node = "n1", .limits = {}});
  const std::string page = collector.page();
  EXPECT_THAT(page, ::testing::HasSubstr("lockstep_loss_scale{job_id=\"7\""));
  EXPECT_THAT(page, ::testing::HasSubstr(" Nan\n"));
  EXPECT_THAT(page, ::testing::Not(::testing::ContainsRegex("-[nN]an")));
}

// Prometheus reads up to 17 digits; the default of a stream would be 6.
TEST_F(ExporterTest, LargeCountsAndTimesKeepTheirDigits) {
  const auto rank = rank_of("1000/7.0", 0);
  rank->end_step(kMs, 0, {.tokens = 1'234'567'890'123, .samples = 1, .padding = 0});
  Collector collector({.records = root_.path(), .cache = {}, .node = "n1", .limits = {}});
  const std::string page = collector.page();
  EXPECT_THAT(page, ::testing::HasSubstr("rank=\"0\"} 1234567890123\n"));
  EXPECT_THAT(page, ::testing::HasSubstr("le=\"0.005\"} "));
  EXPECT_THAT(page, ::testing::HasSubstr("le=\"+Inf\"} 1\n"));
}

/// Expects the bytes of each origin, and how many sources were copied or found.
void expect_staged(const ParsedPage& page, const std::map<std::string, double>& bytes, double hits,
                   double misses) {
  for (const auto& [origin, expected] : bytes)
    EXPECT_EQ(page.value("lockstep_stage_bytes", "origin", origin), expected) << origin;
  EXPECT_EQ(page.value("lockstep_stage_hits"), hits);
  EXPECT_EQ(page.value("lockstep_stage_misses"), misses);
}

// The script of a job and three steps stage the same sources: the first copies them, the others find them.
TEST_F(ExporterTest, StagedBytesCountOncePerJob) {
  const auto report = [&](const std::string& step, const char* numbers) {
    write_file_atomically(job_folder("1000/7." + step) / "staging.json",
                          fmt::format(R"({{"node":"n1","sources":[{{"source":"/a",{}}}]}})", numbers));
  };
  report("batch", R"("bytes":100,"from_source":60,"from_peers":40,"hit":false,"seconds":1.5)");
  for (const char* step : {"0", "1", "2"})
    report(step, R"("bytes":100,"from_source":0,"from_peers":0,"hit":true,"seconds":0.1)");
  const ParsedPage page = collect();
  ASSERT_EQ(page.samples.at("lockstep_stage_bytes").size(), 3);
  EXPECT_EQ(page.samples.at("lockstep_stage_bytes")[0].labels,
            (std::map<std::string, std::string>{{"job_id", "7"}, {"node", "n1"}, {"origin", "source"}}));
  expect_staged(page, {{"source", 60}, {"peers", 40}, {"cache", 0}}, 0, 1);
  EXPECT_EQ(page.value("lockstep_stage_expected_bytes"), 100);
  EXPECT_EQ(page.value("lockstep_stage_seconds"), 1.5);
  EXPECT_EQ(page.samples.at("lockstep_stage_state").size(), 4 * kStagingStates.size())
      << "each step has its own";
}

TEST_F(ExporterTest, StagingIsServedBeforeThereAreRanks) {
  const std::filesystem::path folder = job_folder("1000/7.0");
  write_file_atomically(folder / "staging.json", R"({"job":7,"node":"n1","state":"staging","sources":[
    {"source":"/a","bytes":100,"done":30,"from_source":20,"from_peers":10,"hit":false,"seconds":1.5},
    {"source":"/b","bytes":50,"done":50,"from_source":0,"from_peers":0,"hit":true,"seconds":0.5}]})");
  const ParsedPage page = collect();
  EXPECT_EQ(page.value("lockstep_stage_bytes", "origin", "source"), 20);
  EXPECT_EQ(page.value("lockstep_stage_bytes", "origin", "cache"), 50);
  EXPECT_EQ(page.value("lockstep_stage_expected_bytes"), 150);
  EXPECT_EQ(page.value("lockstep_stage_state", "state", "staging"), 1);
  EXPECT_EQ(page.value("lockstep_stage_state", "state", "done"), 0);
  EXPECT_FALSE(page.has("lockstep_job_info"));
}

TEST_F(ExporterTest, StagingOfAJobWithoutRanksIsServedForAWhileAfterTheJob) {
  const std::filesystem::path folder = job_folder("1000/7.0");
  write_file_atomically(folder / "staging.json", R"({"state":"failed","sources":[]})");
  const std::filesystem::path ended = folder.parent_path() / ".ended-7.0";
  std::ofstream(ended).close();
  EXPECT_EQ(collect().value("lockstep_stage_state", "state", "failed"), 1);
  std::filesystem::last_write_time(ended,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::minutes(2));
  EXPECT_FALSE(collect().has("lockstep_stage_state"));
}

TEST_F(ExporterTest, StagingWithoutRanksCountsForTheLimits) {
  for (int job = 0; job < 5; ++job) {
    write_file_atomically(job_folder(fmt::format("1000/{}.0", job)) / "staging.json", R"({"sources":[]})");
  }
  const ParsedPage page = collect({.files_per_user = 3});
  EXPECT_EQ(page.samples.at("lockstep_stage_seconds").size(), 3U);
}

}  // namespace
}  // namespace lockstep::exporter
