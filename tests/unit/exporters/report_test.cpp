#include "exporters/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv
#include <unistd.h>

#include <memory>

#include "common/error.h"
#include "common/files.h"
#include "common/tool.h"
#include "exporters/record/record.h"
#include "exporters/report/diagnosis.h"
#include "exporters/report/picture.h"
#include "exporters/report/run.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::report {
namespace {

using record::Collective;
using record::Phase;
using record::Writer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr std::uint64_t kMs = 1'000'000;

class ReportTest : public ::testing::Test {
 protected:
  Writer& rank(int rank, int size = 4, std::uint64_t job = 7) {
    const record::Identity identity{.job_id = job,
                                    .step_id = 0,
                                    .rank = rank,
                                    .size = size,
                                    .node = rank < 2 ? "n1" : "n2",
                                    .program = "text_lm"};
    ranks_.push_back(std::make_unique<Writer>(folder_ / fmt::format("rank-{:06}.record", rank), identity));
    return *ranks_.back();
  }

  // A step of 100 ms in which the rank works `own` and waits for the others.
  static void step(Writer& rank, std::uint64_t own, std::uint64_t data_wait = 0, std::uint64_t padding = 0,
                   std::uint64_t tokens = 1000) {
    rank.add_phase(Phase::data_wait, data_wait * kMs);
    rank.add_phase(Phase::forward, (own - data_wait) * kMs);
    rank.add_phase(Phase::comm_exposed, (100 - own) * kMs);
    rank.end_step(100 * kMs, 0, {.tokens = tokens, .samples = 1, .padding = padding});
  }

  lockstep::testing::TemporaryFolder folder_;
  std::vector<std::unique_ptr<Writer>> ranks_;
};

TEST_F(ReportTest, TableAndJsonShowMeansPerStep) {
  for (int i = 0; i < 4; ++i) {
    Writer& writer = rank(i);
    writer.add_comm(4 * kMs, 2 * kMs, 0);
    step(writer, 90, 10);
    step(writer, 80);
  }
  const auto run = load({folder_.path()});
  const nlohmann::json json = to_json(run);
  EXPECT_EQ(json["job"], 7);
  EXPECT_EQ(json["ranks"].size(), 4);
  const nlohmann::json& third = json["ranks"][3];
  EXPECT_EQ(third["rank"], 3);
  EXPECT_EQ(third["node"], "n2");
  EXPECT_EQ(third["steps"], 2);
  EXPECT_DOUBLE_EQ(third["step_ms"], 100);
  EXPECT_DOUBLE_EQ(third["phases_ms"]["data_wait"], 5);
  EXPECT_DOUBLE_EQ(third["phases_ms"]["comm_exposed"], 15);
  EXPECT_DOUBLE_EQ(third["own_ms"], 85);
  EXPECT_DOUBLE_EQ(third["comm_wait_ms"], 1);
  EXPECT_DOUBLE_EQ(third["tokens_per_second"], 10000);
  EXPECT_DOUBLE_EQ(json["tokens_per_second"], 40000);
  double phases = 0;
  for (const auto& [name, ms] : third["phases_ms"].items()) phases += ms.get<double>();
  EXPECT_DOUBLE_EQ(phases, 100);
  const std::string text = to_text(run);
  EXPECT_THAT(text, HasSubstr("text_lm · job 7.0 · 4 ranks · 2 steps · running"));
  EXPECT_THAT(text, HasSubstr("   3  n2        2    100.00"));
}

TEST_F(ReportTest, StagingIsShownPerNodeAsHitOrMiss) {
  step(rank(0, 1), 90);
  const std::string source =
      R"({"source":"/mnt/a","bytes":100,"from_source":60,"from_peers":40,"hit":false,"seconds":1})";
  write_file_atomically(folder_ / "staging-n1.json", R"({"node":"n1","sources":[)" + source + "]}");
  write_file_atomically(
      folder_ / "staging-n2.json",
      R"({"node":"n2","sources":[{"source":"/mnt/a","bytes":100,"from_source":0,"from_peers":0,)"
      R"("hit":true,"seconds":0.1}]})");
  const nlohmann::json staging = to_json(load({folder_.path()}))["staging"];
  ASSERT_EQ(staging.size(), 2);
  EXPECT_EQ(staging[0]["misses"], 1);
  EXPECT_EQ(staging[0]["from_peers"], 40);
  EXPECT_EQ(staging[1]["node"], "n2");
  EXPECT_EQ(staging[1]["hits"], 1);
  const std::string text = to_text(load({folder_.path()}));
  EXPECT_THAT(text, HasSubstr("n1           miss"));
  EXPECT_THAT(text, HasSubstr("n2           hit"));
}

TEST_F(ReportTest, ANodeWhoseStagingFailedIsNotAHit) {
  step(rank(0, 1), 90);
  write_file_atomically(folder_ / "staging-n1.json", R"({"node":"n1","state":"source","sources":[]})");
  const report::Run run = load({folder_.path()});
  EXPECT_EQ(to_json(run)["staging"][0]["state"], "source");
  EXPECT_THAT(to_text(run), HasSubstr("n1           source"));
  EXPECT_THAT(to_html(run), HasSubstr("<td class=\"name\">n1</td><td></td><td>source</td>"));
}

TEST_F(ReportTest, RecordsOfAnEarlierRunAreLeftOut) {
  step(rank(3, 4, 6), 90);
  step(rank(0, 2, 7), 90);
  step(rank(1, 2, 7), 90);
  const auto run = load({folder_.path()});
  EXPECT_EQ(run.ranks.size(), 2);
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("1 records of other runs")));
}

TEST_F(ReportTest, MissingRanksAreMentioned) {
  step(rank(1, 4), 90);
  EXPECT_THAT(load({folder_.path()}).notes, ElementsAre(HasSubstr("3 of 4 ranks")));
}

TEST_F(ReportTest, FolderWithoutRecordsAndDamagedRecordsAreNamed) {
  EXPECT_THAT([&] { load({folder_.path()}); }, ThrowsMessage<Error>(HasSubstr(folder_.path().string())));
  EXPECT_THAT([&] { load({folder_ / "none.record"}); }, ThrowsMessage<Error>(HasSubstr("none.record")));
  write_file_atomically(folder_ / "rank-000000.record", "nonsense");
  EXPECT_THAT([&] { load({folder_.path()}); }, ThrowsMessage<Error>(HasSubstr("rank-000000.record")));
}

TEST_F(ReportTest, DamagedFilesAreLeftOutAndCountedInOneNote) {
  for (int i = 0; i < 3; ++i) step(rank(i), 90);
  write_file_atomically(folder_ / "rank-000003.record", "half");
  write_file_atomically(folder_ / "staging-n1.json", R"({"node":"n1","sources":[{"bytes":-1}]})");
  std::filesystem::resize_file(folder_ / "rank-000001.record", 9000);
  const auto run = load({folder_.path()});
  EXPECT_EQ(run.ranks.size(), 2);
  EXPECT_THAT(run.notes,
              ElementsAre(HasSubstr("3 of the files cannot be read and were left out; the first: "),
                          HasSubstr("2 of 4 ranks")));
  EXPECT_EQ(to_json(run)["unreadable"], 3);
  EXPECT_THAT(to_text(run), HasSubstr("(3 of the files cannot be read"));
  EXPECT_THAT([&] { load({folder_ / "rank-000001.record"}); },
              ThrowsMessage<Error>(HasSubstr("rank-000001.record")));
}

TEST_F(ReportTest, NamesFromOutsideDoNotReachTheTerminalAsTheyAre) {
  const record::Identity identity{.node = "n1\x1b]0;title\a", .program = "train\n\x1b[2J"};
  Writer writer(folder_ / "rank-000000.record", identity);
  step(writer, 90);
  write_file_atomically(folder_ / "staging.json", R"({"node":"n\u001b[1m","sources":[]})");
  const std::string text = to_text(load({folder_.path()}));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("train\\x0a\\x1b[2J"));
}

// One rank claims the first steps and another one the last steps that a number can count.
TEST_F(ReportTest, PageOfImpossibleStepNumbersIsMade) {
  for (int i = 0; i < 2; ++i) step(rank(i, 2), 90);
  auto run = load({folder_.path()});
  run.ranks[1].steps[0].index = ~0ULL - 1;
  EXPECT_THAT(step_heatmap(run), HasSubstr("</svg>"));
}

TEST_F(ReportTest, RunWithoutAStepIsReportedToo) {
  rank(0, 1);
  const auto run = load({folder_.path()});
  EXPECT_THAT(advise(run, diagnose(run)), ElementsAre("No step has ended yet."));
  EXPECT_THAT(to_html(run), HasSubstr("</html>"));
  EXPECT_EQ(to_json(run)["ranks"][0]["step_ms"], 0.0);
}

TEST_F(ReportTest, PageShowsEveryPhaseThatTookTimeAndIsSelfContained) {
  for (int i = 0; i < 4; ++i) step(rank(i), 90, 10);
  const std::string page = to_html(load({folder_.path()}));
  EXPECT_THAT(page, HasSubstr("rank 3 · n2: forward 80.00 ms, 80.0 % of the step"));
  EXPECT_THAT(page, HasSubstr("rank 0 · n1, step 0: works 90.00 ms, +0.0 %"));
  const passwd* me = ::getpwuid(::getuid());
  ASSERT_NE(me, nullptr);
  EXPECT_THAT(page, HasSubstr(fmt::format(" · user {} · lockstep {}", me->pw_name, version())));
  EXPECT_THAT(page, ::testing::ContainsRegex("began 20[0-9]{2}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2} UTC"));
  for (const char* outside : {"<script", "http://", "https://", "url(", "@import"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
}

TEST_F(ReportTest, StragglersAndRulesAreInTheTextThePageAndTheJson) {
  for (int i = 0; i < 4; ++i) {
    Writer& writer = rank(i);
    for (int k = 0; k < 10; ++k) step(writer, i == 3 ? 99 : 80);
  }
  const auto run = load({folder_.path()});
  const nlohmann::json json = to_json(run);
  EXPECT_EQ(json["stragglers"]["found"][0]["ranks"], nlohmann::json::array({3}));
  EXPECT_EQ(json["rules"][0]["rule"], "slow-rank");
  const std::string advice = json["advice"][0];
  EXPECT_THAT(advice, HasSubstr("Slow worker: rank 3 on n2 works 24 % longer"));
  EXPECT_THAT(to_text(run), HasSubstr(advice));
  EXPECT_THAT(to_text(run), HasSubstr("late_rank"));
  EXPECT_THAT(to_html(run), HasSubstr("Ranks that others wait for"));
}

TEST_F(ReportTest, PageOfVeryManyRanksShowsTheSlowest) {
  for (int i = 0; i < 200; ++i) {
    Writer& writer = rank(i, 200);
    step(writer, i == 150 ? 99 : 90);
  }
  const auto run = load({folder_.path()});
  EXPECT_THAT(phase_bars(run), HasSubstr("the 64 slowest of 200 ranks"));
  EXPECT_THAT(phase_bars(run), HasSubstr("rank 150"));
}

TEST_F(ReportTest, NamesFromOutsideAreEscaped) {
  const record::Identity identity{.node = "<b>&n", .program = "</title><script>alert(1)</script>"};
  Writer writer(folder_ / "rank-000000.record", identity);
  step(writer, 90);
  const std::string page = to_html(load({folder_.path()}));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;&amp;n"));
}

TEST_F(ReportTest, UnmeasuredValuesAreNotShownAsZero) {
  step(rank(0, 1), 90);
  const auto run = load({folder_.path()});
  EXPECT_TRUE(to_json(run)["ranks"][0]["comm_wait_ms"].is_null());
  EXPECT_EQ(waiting(run.ranks[0]), "-");
  ranks_[0]->add_comm(3 * kMs, 0, -1);
  step(*ranks_[0], 90);
  EXPECT_EQ(waiting(load({folder_.path()}).ranks[0]), "0.00");
}

TEST_F(ReportTest, GpusAreInTheTextThePageAndTheJson) {
  step(rank(0, 2), 90);
  Writer& writer = rank(1, 2);
  step(writer, 90);
  EXPECT_THAT(to_text(load({folder_.path()})), Not(HasSubstr("GPUs")));
  writer.set_resources({.sampled_ns = 1,
                        .gpu = {.uuid = {0, 0xab},
                                .memory_peak_bytes = std::uint64_t{30} << 30U,
                                .memory_total_bytes = std::uint64_t{80} << 30U,
                                .measured_ns = 100,
                                .busy_ns = 93,
                                .sm_mhz = 1410,
                                .energy_mj = 12'345'000,
                                .xid_errors = 2,
                                .last_xid = 79}});
  const auto run = load({folder_.path()});
  EXPECT_THAT(
      to_text(run),
      HasSubstr("\nGPUs:\nrank  node      busy      peak    memory    sm_mhz   max_mhz"
                "    slowed    capped    energy       ecc       xid\n   1  n1         93%  30.0 GiB  80.0 GiB"
                "      1410         -        0%        0%   12.3 kJ         0         2\n"));
  EXPECT_THAT(to_html(run), HasSubstr("<h2>GPUs</h2>"));
  const nlohmann::json json = to_json(run);
  EXPECT_TRUE(json["ranks"][0]["gpu"].is_null());
  EXPECT_EQ(json["ranks"][1]["gpu"]["uuid"], "GPU-00000000-0000-0000-0000-0000000000ab");
  EXPECT_DOUBLE_EQ(json["ranks"][1]["gpu"]["busy_seconds"], 93e-9);
  EXPECT_EQ(json["ranks"][1]["gpu"]["xid_errors"], 2);
  EXPECT_EQ(json["ranks"][1]["gpu"]["last_xid"], 79);
}

TEST_F(ReportTest, RestartsOfTheJobAreShownWithCauseTimeAndNodes) {
  step(rank(0, 1), 90);
  EXPECT_THAT(to_text(load({folder_.path()})), Not(HasSubstr("restarts")));
  const double now = end_unix(load({folder_.path()}));
  const auto start = [&](double ago, const std::string& nodes) {
    return fmt::format("{{\"start\":0,\"at\":{:.3f},\"nodes\":[{}]}}\n", now - ago, nodes);
  };
  const std::string first =
      start(100, R"("n1","n2")") +
      fmt::format("{{\"end\":137,\"at\":{:.3f},\"failed\":{:.3f},\"cause\":\"n2: task 1: Killed\"}}\n",
                  now - 50, now - 52) +
      start(47, R"("n1","n3")");
  const auto file = folder_ / "restarts-7.jsonl";
  write_file_atomically(file, first + start(10, R"("n1","n3")"));
  const report::Run run = load({folder_.path()});
  EXPECT_THAT(
      to_text(run),
      HasSubstr("restarts: 2; no rank ran in 5.00 s of the 1 min 40 s since the first start, so at most "));
  EXPECT_THAT(to_text(run),
              HasSubstr("restart 1 after 53.0 s: n2: task 1: Killed: 2.00 s until the ranks had ended, "
                        "3.00 s until the new start; without n2\n"));
  EXPECT_THAT(to_text(run),
              HasSubstr("lockstep-run was lost with its node, or killed: its time is not known\n"));
  EXPECT_THAT(to_html(run), HasSubstr("n2: task 1: Killed"));
  const nlohmann::json json = to_json(run);
  EXPECT_NEAR(json["restarts"][0]["stop_seconds"], 2, 0.01);
  EXPECT_EQ(json["restarts"][0]["without"][0], "n2");
  EXPECT_TRUE(json["restarts"][1]["stop_seconds"].is_null());
  EXPECT_EQ(json["started_unix"], 1e-9 * static_cast<double>(run.ranks[0].start_unix_ns));
  EXPECT_NEAR(json["goodput_job"], 0.95 * json["goodput"].get<double>(), 1e-3);

  write_file_atomically(file, first + "{\"start\":\n");
  EXPECT_THAT(load({folder_.path()}).notes, ElementsAre(HasSubstr("restarts-7.jsonl:4 is damaged")));
}

TEST_F(ReportTest, AProfileIsInTheTextThePageAndTheJson) {
  step(rank(0, 1), 90);
  const auto file = folder_ / "profile.json";
  write_file_atomically(
      file,
      R"({"rank":0,"node":"n1","steps":2,"step_ms":200.0,"small":{"calls":0,"ms":0.0,"name":""},)"
      R"("operators":[{"name":"aten::mm","calls":80,"total_ms":120.0,"self_ms":110.0}],)"
      R"("modules":[{"name":"blocks.3","forward_ms":24.0,"backward_ms":50.0,"forward_bytes":2097152,"backward_bytes":4194304}],)"
      R"("device":{"computing_ms":120.0,"tensor_cores_ms":60.0,"communicating_ms":40.0,"copying_ms":2.0,"busy_ms":150.0,)"
      R"("kernels":[{"name":"nvjet_hsh_128x256","calls":16,"ms":60.0}]},)"
      R"("host_copies":[],"device_waits":[],"half_sums":[]})");
  const auto run = load({folder_.path()});
  const std::string text = to_text(run);
  EXPECT_THAT(text,
              HasSubstr("profile of rank 0 on n1, milliseconds per step, mean of 2 steps of 100.00 ms:"));
  EXPECT_THAT(text, HasSubstr("       40     60.00     55.00  aten::mm\n"));
  EXPECT_THAT(
      text, HasSubstr("of the step the GPU computes 60 % (tensor cores 30 %), communicates 20 %, copies 1 %, "
                      "idles 25 %\n"));
  EXPECT_THAT(text, HasSubstr("        8     30.00  nvjet_hsh_128x256\n"));
  EXPECT_THAT(text, HasSubstr("    12.00     25.00   1.00 MiB   2.00 MiB  blocks.3\n"));
  EXPECT_THAT(to_html(run), HasSubstr("2.00 MiB  blocks.3"));
  EXPECT_EQ(to_json(run)["profile"]["operators"][0]["calls"], 80);

  std::filesystem::last_write_time(file,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_THAT(to_text(load({folder_.path()})), Not(HasSubstr("profile"))) << "of an earlier run";
  write_file_atomically(file, R"({"rank":0})");
  EXPECT_THAT(load({folder_.path()}).notes,
              ElementsAre(HasSubstr("profile.json is not a profile of lockstep")));
}

TEST_F(ReportTest, BandwidthsAreThoseThatNcclsTestsDefine) {
  Writer& writer = rank(0, 4);
  step(writer, 90);
  writer.set_resources({.sampled_ns = 1});
  EXPECT_THAT(to_text(load({folder_.path()})), Not(HasSubstr("bandwidth")));
  writer.add_collective(record::Collective::all_reduce, 3'000'000'000, 2'000'000'000);
  writer.add_collective(record::Collective::all_gather, 4'000'000'000, 1'000'000'000);
  writer.add_collective(record::Collective::broadcast, 500'000'000, 1'000'000'000);
  writer.set_resources({.sampled_ns = 2});
  const auto run = load({folder_.path()});
  EXPECT_THAT(
      to_text(run),
      HasSubstr(
          "\nbandwidth of collectives in GB/s, as NCCL's tests define it:\n"
          "rank  node    ar_alg    ar_bus    rs_alg    rs_bus    ag_alg    ag_bus    bc_alg    bc_bus\n"
          "   0  n1         1.5      2.25         -         -         4         3       0.5       0.5\n"));
  EXPECT_THAT(to_html(run), HasSubstr("<h2>Bandwidth of collectives"));
  const nlohmann::json json = to_json(run)["ranks"][0]["collectives"];
  EXPECT_EQ(json.size(), 3U);
  EXPECT_DOUBLE_EQ(json["all_reduce"]["algorithm_bytes_per_second"], 1.5e9);
  EXPECT_DOUBLE_EQ(json["all_reduce"]["bus_bytes_per_second"], 2.25e9);
}

TEST_F(ReportTest, AJobIsFoundByItsNumber) {
  ::unsetenv("LOCKSTEP_REPORT_DIR");
  ::setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
  const auto records = folder_ / "lockstep/records";
  std::filesystem::create_directories(records / "987654321.0");
  std::filesystem::create_directories(records / "987654321.1");
  std::filesystem::create_directories(records / "987654321.2");  // no rank has begun
  for (const char* step : {"987654321.0", "987654321.1"}) {
    Writer(records / step / "rank-000000.record", {.job_id = 987654321}).end_step(kMs, 0, {});
  }
  using Paths = std::vector<std::filesystem::path>;
  EXPECT_EQ(find_records("987654321"), (Paths{records / "987654321.0", records / "987654321.1"}));
  EXPECT_EQ(find_records("987654321.1"), Paths{records / "987654321.1"});
  EXPECT_THAT([] { find_records("98765432"); }, ThrowsMessage<Error>(HasSubstr("lockstep/records")));
  // As with the plugin, the folder of the records may be entered but not listed, by users other than root.
  std::filesystem::permissions(records, std::filesystem::perms::owner_exec |
                                            std::filesystem::perms::group_exec |
                                            std::filesystem::perms::others_exec);
  const uid_t user = ::geteuid() == 0 ? 65534 : ::geteuid();
  const auto as_user = [&](const auto& call) {
    const bool root = ::geteuid() == 0;
    if (root && ::seteuid(user) != 0) throw std::runtime_error("cannot become another user");
    call();
    if (root && ::seteuid(0) != 0) throw std::runtime_error("cannot become root again");
  };
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
  as_user([&] {
    EXPECT_EQ(find_records("987654321"), (Paths{records / "987654321.0", records / "987654321.1"}));
    EXPECT_EQ(find_records("987654321.1"), Paths{records / "987654321.1"});
  });
  std::filesystem::permissions(records / "987654321.1", std::filesystem::perms::none);
  as_user([&] {
    EXPECT_THAT([] { find_records("987654321.1"); },
                ThrowsMessage<Error>(HasSubstr("987654321.1: Permission denied")));
  });
  std::filesystem::permissions(records / "987654321.1", std::filesystem::perms::all);
  std::filesystem::permissions(records, std::filesystem::perms::all);
  ::setenv("SLURM_JOB_ID", "98765432", 1);
  EXPECT_THAT([] { find_records("98765432"); },
              ThrowsMessage<Error>(HasSubstr("no rank records on this node yet")));
  ::unsetenv("SLURM_JOB_ID");
  // The copies of all nodes come before this node's own records.
  ::setenv("LOCKSTEP_REPORT_DIR", (folder_ / "report").c_str(), 1);
  EXPECT_EQ(find_records("987654321.0"), Paths{records / "987654321.0"});
  std::filesystem::create_directories(folder_ / "report");
  Writer(folder_ / "report/rank-000000.record", {.job_id = 987654321}).end_step(kMs, 0, {});
  EXPECT_EQ(find_records("987654321"), Paths{folder_ / "report"});
  EXPECT_EQ(find_records("987654321.1"), Paths{records / "987654321.1"});
  EXPECT_EQ(find_records("987654321", Prefer::live),
            (Paths{records / "987654321.0", records / "987654321.1"}));
  EXPECT_EQ(find_records(folder_ / "report"), Paths{folder_ / "report"});
  EXPECT_EQ(find_records("no-such-folder"), Paths{"no-such-folder"});  // load() reports it
  ::unsetenv("LOCKSTEP_REPORT_DIR");
}

TEST_F(ReportTest, TwoRunsAreComparedFigureByFigure) {
  for (int i = 0; i < 2; ++i) step(rank(i, 2), 90, 40);
  const auto before = load({folder_.path()});
  ranks_.clear();
  for (int i = 0; i < 2; ++i) step(rank(i, 2), 60, 10, 1000);
  const auto now = load({folder_.path()});
  const nlohmann::json json = comparison_json(now, before);
  EXPECT_DOUBLE_EQ(json["run"]["data_wait_ms"], 10);
  EXPECT_DOUBLE_EQ(json["baseline"]["data_wait_ms"], 40);
  EXPECT_DOUBLE_EQ(json["change"]["data_wait_ms"], -0.75);
  EXPECT_DOUBLE_EQ(json["change"]["step_ms"], 0);
  EXPECT_DOUBLE_EQ(json["run"]["padding_share"], 0.5);
  EXPECT_TRUE(json["change"]["padding_share"].is_null());
  EXPECT_THAT(comparison_text(now, before),
              HasSubstr("data_wait_ms             10.000       40.000   -75.0 %"));
}

}  // namespace
}  // namespace lockstep::report
