#include "runtime/profile/profiler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/clock.h"
#include "common/files.h"
#include "runtime/profile/profile_summary.h"
#include "runtime/profile/step_timer.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::profile {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Span operation(std::string name, std::uint64_t begin_ns, std::uint64_t end_ns, int thread = 5) {
  return {.kind = SpanKind::operation,
          .name = std::move(name),
          .begin_ns = begin_ns,
          .end_ns = end_ns,
          .thread = thread};
}

json events_of(const Spans& spans, const TraceRank& rank = {.rank = 0, .node = "n1"}) {
  return json::parse(trace_of(spans, rank))["traceEvents"];
}

std::vector<json> events_with(const json& events, const char* key, const json& value) {
  std::vector<json> found;
  std::copy_if(events.begin(), events.end(), std::back_inserter(found),
               [&](const json& event) { return event.contains(key) && event[key] == value; });
  return found;
}

TEST(SpanCollection, CollectsOfAllThreadsBetweenStartAndStop) {
  add_span(operation("early", 1, 2));
  start_spans();
  add_span(operation("here", 1, 2));
  std::thread([] { add_span(operation("there", 1, 2)); }).join();
  const Spans spans = stop_spans();
  add_span(operation("late", 1, 2));
  ASSERT_THAT(spans.spans, SizeIs(2));
  EXPECT_EQ(spans.spans[1].name, "there");
  EXPECT_NE(spans.spans[0].thread, spans.spans[1].thread);
  EXPECT_THAT(stop_spans().spans, IsEmpty());
}

TEST(SpanCollection, SeesMemoryGrow) {
  constexpr std::size_t kBytes = 64 << 20;
  std::uint64_t device = 7;
  start_spans([&] { return device; });
  add_span(operation("before", 1, monotonic_ns()));
  const std::vector<char> memory(kBytes, 'x');
  EXPECT_EQ(std::count(memory.begin(), memory.end(), 'x'), kBytes);
  add_span(operation("after", 1, monotonic_ns() + 1'000'000'000));
  const Spans spans = stop_spans();
  ASSERT_THAT(spans.memory, SizeIs(2));
  EXPECT_GE(spans.memory[1].resident_bytes, spans.memory[0].resident_bytes + kBytes / 2);
  EXPECT_EQ(spans.memory[1].device_bytes, 7);
}

TEST(OperatorTable, DividesTimeIntoOwnAndThatOfCalledOperators) {
  // Inner operators end first. A call of `outer` within itself counts once in its total.
  const std::vector<Span> spans = {operation("inner", 10, 30), operation("inner", 40, 50),
                                   operation("outer", 60, 70), operation("outer", 0, 100),
                                   operation("inner", 0, 1000, 6)};
  const auto times = operator_times(spans);
  ASSERT_THAT(times, SizeIs(2));
  EXPECT_EQ(times[0].name, "inner");
  EXPECT_EQ(times[0].calls, 3);
  EXPECT_EQ(times[0].total_ns, 1030);
  EXPECT_EQ(times[0].self_ns, 1030);
  EXPECT_EQ(times[1].name, "outer");
  EXPECT_EQ(times[1].calls, 2);
  EXPECT_EQ(times[1].total_ns, 100);
  EXPECT_EQ(times[1].self_ns, 70);
  EXPECT_THAT(operator_table(times), HasSubstr("        3        0.001        0.001    93.6  inner\n"));
}

TEST(ProfileSummary, DividesTimeAndBytesAmongModules) {
  const auto part = [](std::string name, ModelPart what, int module, std::uint64_t ns, std::uint64_t bytes) {
    Span span = operation(std::move(name), 1000, 1000 + ns);
    span.part = what;
    span.module = module;
    span.bytes = bytes;
    return span;
  };
  Spans spans;
  spans.modules = {"first", "unused", "second"};
  spans.spans = {part("aten::linear", ModelPart::forward, 2, 3'000'000, 400),
                 part("aten::addmm", ModelPart::none, 2, 2'900'000, 400),  // called by linear
                 part("aten::relu", ModelPart::forward, 0, 2'000, 100),
                 part("aten::relu", ModelPart::forward, 0, 3'000, 100),
                 part("AddmmBackward0", ModelPart::node, 2, 5'000'000, 0),
                 part("aten::mm", ModelPart::backward, 2, 4'000'000, 800),
                 part("aten::add_", ModelPart::backward, -1, 5'000, 7),
                 {.kind = SpanKind::step, .name = "step 1", .begin_ns = 0, .end_ns = 9'000'000}};
  spans.faults[{OperationFault::device_wait, "aten::item"}] = {.calls = 3, .bytes = 0};
  const json summary = profile_summary(spans, {.rank = 1, .node = "n2"});
  EXPECT_EQ(
      summary["modules"],
      json::parse(
          R"([{"name":"second","forward_ms":3.0,"backward_ms":5.0,"forward_bytes":400,"backward_bytes":800},)"
          R"({"name":"first","forward_ms":0.005,"backward_ms":0.0,"forward_bytes":200,"backward_bytes":0}])"));
  EXPECT_EQ(summary["small"], json::parse(R"({"calls":3,"ms":0.01,"name":"aten::relu"})"));
  EXPECT_EQ(summary["device_waits"], json::parse(R"([{"name":"aten::item","calls":3,"bytes":0}])"));
  EXPECT_THAT(summary["half_sums"], IsEmpty());
  EXPECT_EQ(summary["steps"], 1);
  EXPECT_EQ(summary["step_ms"], 9.0);
  EXPECT_EQ(summary["node"], "n2");
  for (int i = 0; i < 12; ++i) spans.spans.push_back(operation(fmt::format("op{}", i), 0, 10));
  EXPECT_THAT(profile_summary(spans, {.rank = 1, .node = "n2"})["operators"], SizeIs(10));
}

Span device_span(std::string name, std::uint64_t begin, std::uint64_t end, int stream = 7) {
  Span span{.kind = SpanKind::device, .name = std::move(name), .begin_ns = begin, .end_ns = end};
  span.thread = stream;
  span.work = device_work_of(span.name);
  return span;
}

// Times of several streams count once, and only within the steps.
TEST(DeviceWork, IsDividedByKind) {
  const std::string tensor =
      "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute";
  const std::string pointwise = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>";
  const std::string reduction = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
  Spans spans;
  spans.spans = {device_span(tensor, 0, 90),  // 50 to 90 is in the step
                 device_span(tensor, 80, 100, 8),
                 device_span(pointwise, 100, 120),
                 device_span(reduction, 110, 160, 9),
                 device_span("Memcpy HtoD (Pinned -> Device)", 190, 250),
                 {.kind = SpanKind::step, .name = "step 1", .begin_ns = 50, .end_ns = 200}};
  const DeviceTimes times = device_times(spans.spans);
  EXPECT_EQ(times.computing, 70);
  EXPECT_EQ(times.tensor_cores, 50);
  EXPECT_EQ(times.communicating, 50);
  EXPECT_EQ(times.copying, 10);
  EXPECT_EQ(times.busy, 120);
  const json device = profile_summary(spans, {.rank = 0, .node = "n1"})["device"];
  EXPECT_DOUBLE_EQ(device["busy_ms"].get<double>(), 120e-6);
  EXPECT_EQ(device["kernels"][0]["name"], tensor);
  EXPECT_EQ(device["kernels"][0]["calls"], 2);
  EXPECT_DOUBLE_EQ(device["kernels"][0]["ms"].get<double>(), 110e-6);
  EXPECT_THAT(device["kernels"], SizeIs(4));
  const std::string trace = trace_of(spans, {.rank = 0, .node = "n1"});
  EXPECT_THAT(trace, HasSubstr("\"GPU stream 9\""));
}

TEST(DeviceWork, OnTensorCoresIsKnownByName) {
  for (const char* const name :
       {"ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_nn",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4>",
        "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu_f2f_exp_interior_nhwc_tn_v1"})
    EXPECT_EQ(device_work_of(name), DeviceWork::tensor_kernel) << name;
  for (const char* const name :
       {"volta_sgemm_128x64_tn", "ampere_sgemm_32x128_nn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>"})
    EXPECT_EQ(device_work_of(name), DeviceWork::kernel) << name;
}

TEST(Trace, PutsRanksOnTheClockOfTheFirst) {
  Spans spans;
  spans.spans = {operation("op", 1'000'000'123, 1'000'002'124)};
  const auto first = events_with(events_of(spans), "ph", "X").at(0);
  EXPECT_EQ(first["ts"], 1'000'000.123);
  EXPECT_EQ(first["dur"], 2.001);
  EXPECT_EQ(first["pid"], 1);
  const auto second =
      events_with(events_of(spans, {.rank = 3, .node = "n2", .clock_offset_ns = 1'000'000}), "ph", "X").at(0);
  EXPECT_EQ(second["ts"], 999'000.123) << "its clock is ahead";
  EXPECT_EQ(second["pid"], 4);
}

TEST(Trace, KeepsAnyName) {
  Spans spans;
  spans.spans = {operation("a \"quoted\\\" \n name", 1, 2), operation("not UTF-8: \xff", 3, 4)};
  const auto found = events_with(events_of(spans, {.rank = 0, .node = "\"node\""}), "ph", "X");
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0]["name"], "a \"quoted\\\" \n name");
}

TEST(Trace, GivesEachCollectiveInFlightATrackWithItsWait) {
  Spans spans;
  const Span one = {.kind = SpanKind::collective,
                    .name = "one",
                    .begin_ns = 1000,
                    .end_ns = 9000,
                    .all_asked_ns = 4000,
                    .late_rank = 2};
  const Span two = {.kind = SpanKind::collective, .name = "two", .begin_ns = 2000, .end_ns = 8000};
  spans.spans = {one, two};
  std::vector<std::string> found;
  for (const json& event : events_with(events_of(spans), "cat", "collective")) {
    found.push_back(fmt::format("{} {} {} {}", event["id"].get<std::string>(), event["ph"].get<std::string>(),
                                event["name"].get<std::string>(), event["ts"].get<double>()));
  }
  EXPECT_THAT(found, ElementsAre("0.0 b one 1", "0.0 b waits for rank 2 1", "0.0 e waits for rank 2 4",
                                 "0.0 e one 9", "0.1 b two 2", "0.1 e two 8"));
}

class ProfilerTest : public ::testing::Test {
 protected:
  ProfilerTest() {
    for (const char* name : {"LOCKSTEP_RECORD", "LOCKSTEP_REPORT_DIR", "LOCKSTEP_TENSORBOARD"})
      ::unsetenv(name);
  }

  ProfilerOptions options(const Schedule& schedule, int rank = 0) const {
    return {.schedule = schedule,
            .folder = folder_.path(),
            .rank = {.rank = rank, .node = "n1", .run = "7.0", .ranks = 2},
            .first = rank == 0};
  }

  void train(Profiler& profiler, int steps) const {
    StepTimer timer({.node = "n1"}, {.record = false, .folder = {}});
    timer.set_profiler(&profiler);
    for (int i = 0; i < steps; ++i) {
      { const auto scope = timer.phase(Phase::forward); }
      add_span(operation("op", monotonic_ns(), monotonic_ns()));
      timer.end_step({});
    }
  }

  std::vector<std::string> names_in_trace(const char* category) const {
    std::vector<std::string> names;
    const json trace = json::parse(read_text_file(folder_ / "trace-000000.json"));
    for (const json& event : events_with(trace["traceEvents"], "cat", category))
      names.push_back(event["name"].get<std::string>());
    return names;
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  lockstep::testing::TemporaryFolder folder_;
};

TEST_F(ProfilerTest, KeepsTheActiveSteps) {
  Profiler profiler(options({.wait = 1, .warmup = 1, .active = 2, .repeat = 2}));
  train(profiler, 10);
  EXPECT_THAT(names_in_trace("step"), ElementsAre("step 3", "step 4", "step 7", "step 8"));
  EXPECT_THAT(names_in_trace("phase"), SizeIs(4));
  EXPECT_THAT(names_in_trace("operator"), SizeIs(4));
  EXPECT_THAT(files(), ElementsAre("operators.txt", "profile.json", "trace-000000.json"));
  EXPECT_THAT(read_text_file(folder_ / "operators.txt"),
              HasSubstr("Operators of rank 0 on n1 in 2 steps, until step 8"));
  EXPECT_FALSE(tracing());
}

TEST_F(ProfilerTest, WritesTheActiveStepsOfAJobThatEndsEarly) {
  Profiler profiler(options({.wait = 1, .active = 100}));
  train(profiler, 3);
  EXPECT_THAT(files(), IsEmpty());
  profiler.finish();
  EXPECT_THAT(names_in_trace("step"), ElementsAre("step 2", "step 3"));
  EXPECT_FALSE(tracing());
}

TEST_F(ProfilerTest, SaysThatAJobWasTooShort) {
  Profiler profiler(options({.wait = 5, .active = 1}));
  train(profiler, 3);
  ::testing::internal::CaptureStderr();
  profiler.finish();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("had only 3 steps"));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(ProfilerTest, EachRankWritesItsOwnTraceAndTheFirstTheTables) {
  Profiler second(options({.active = 1}, /*rank=*/1));
  train(second, 3);
  EXPECT_THAT(files(), ElementsAre("trace-000001.json"));
  Profiler first(options({.active = 1}));
  train(first, 3);
  EXPECT_THAT(files(),
              ElementsAre("operators.txt", "profile.json", "trace-000000.json", "trace-000001.json"));
  const json trace = json::parse(read_text_file(folder_ / "trace-000001.json"));
  EXPECT_EQ(trace["otherData"], json({{"run", "7.0"}, {"ranks", 2}}));
  const auto ranks = events_with(trace["traceEvents"], "name", "process_name");
  ASSERT_THAT(ranks, SizeIs(1));
  EXPECT_EQ(ranks[0]["args"]["name"], "rank 1 on n1");
}

TEST_F(ProfilerTest, RemovesItsOwnFilesOfAnEarlierProfileFirst) {
  const auto write = [&] {
    for (const char* name : {"trace-000000.json", "trace-000001.json", "operators.txt", "profile.json"})
      write_file_atomically(folder_ / name, "of an earlier job");
  };
  write();
  const Profiler second(options({.active = 1}, /*rank=*/1));
  EXPECT_THAT(files(), ElementsAre("operators.txt", "profile.json", "trace-000000.json"));
  write();
  const Profiler first(options({.active = 1}));
  EXPECT_THAT(files(), ElementsAre("trace-000001.json"));
}

TEST_F(ProfilerTest, FailsInOneLineAndLetsTheTrainingGoOn) {
  Profiler profiler(options({.active = 1, .repeat = 3}));
  std::filesystem::remove_all(folder_.path());
  ::testing::internal::CaptureStderr();
  train(profiler, 4);
  const std::string error = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(error, HasSubstr("rank 0 on n1 cannot write its profile: "));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  EXPECT_FALSE(tracing());
}

}  // namespace
}  // namespace lockstep::profile
