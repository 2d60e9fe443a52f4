// The record's phases are those of a device that is later than the host.
#include "runtime/profile/device_clock.h"
#include "runtime/profile/profiler.h"
#include "tests/unit/runtime/profile/step_timer_fixture.h"

namespace lockstep::profile {
namespace {

// A queue in which the test puts work of known length.
struct Queue {
  std::uint64_t queued_ns = 0;
  std::uint64_t done_ns = 0;
  bool works = true;
  std::size_t marks = 0;  // that exist

  void run_all() { done_ns = queued_ns; }
};

class QueueClock : public DeviceClock {
 public:
  explicit QueueClock(Queue& queue) : queue_(queue) {}
  Mark mark() noexcept override {
    if (!queue_.works) return nullptr;
    ++queue_.marks;
    return {new std::uint64_t(queue_.queued_ns), [&queue = queue_](std::uint64_t* made) {
              --queue.marks;
              delete made;
            }};
  }
  bool reached(const Mark& mark) noexcept override { return at(mark) <= queue_.done_ns; }
  void wait(const Mark& /*mark*/) noexcept override { queue_.run_all(); }
  std::uint64_t ns_between(const Mark& from, const Mark& to) noexcept override { return at(to) - at(from); }

 private:
  static std::uint64_t at(const Mark& mark) { return *static_cast<const std::uint64_t*>(mark.get()); }
  Queue& queue_;
};

class DevicePhasesTest : public StepTimerTest {
 protected:
  DevicePhasesTest() {
    timer_.emplace(Identity{.job_id = 5, .size = 1, .node = "n1", .program = "train"});
    timer_->use_device_clock(std::make_unique<QueueClock>(queue_));
  }

  void step(std::uint64_t forward_ns, std::uint64_t backward_ns, std::uint64_t exposed_ns) {
    {
      const auto forward = timer_->phase(Phase::forward);
      queue_.queued_ns += forward_ns;
    }
    {
      const auto backward = timer_->phase(Phase::backward);
      queue_.queued_ns += backward_ns;
      const auto exposed = timer_->phase(Phase::comm_exposed);
      queue_.queued_ns += exposed_ns;
    }
    timer_->end_step({.tokens = 10});
  }

  record::Counters counters() const { return record::Reader(timer_->file()).read().counters; }
  static std::uint64_t of(const record::Counters& counters, Phase phase) {
    return counters.phase_ns[record::index(phase)];
  }

  Queue queue_;
  std::optional<StepTimer> timer_;
};

TEST_F(DevicePhasesTest, AStepIsRecordedWithTheDevicesTimesWhenTheDeviceHasFinishedIt) {
  step(1'000'000'000, 2'000'000'000, 500'000'000);
  EXPECT_EQ(counters().steps, 0U);
  queue_.run_all();
  step(7'000'000'000, 0, 0);  // ends while the device works on it
  const auto first = counters();
  EXPECT_EQ(first.steps, 1U);
  EXPECT_EQ(of(first, Phase::forward), 1'000'000'000U);
  EXPECT_EQ(of(first, Phase::backward), 2'000'000'000U);
  EXPECT_EQ(of(first, Phase::comm_exposed), 500'000'000U);
  EXPECT_EQ(first.step_ns, 3'500'000'000U);
  EXPECT_EQ(first.tokens, 10U);
  EXPECT_LT(timer_->totals().step_ns, 1'000'000'000U) << "the host's";
  timer_->finish();
  const auto all = counters();
  EXPECT_EQ(all.steps, 2U);
  EXPECT_EQ(of(all, Phase::forward), 8'000'000'000U);
}

// The host needs 20 microseconds to launch a phase; the device ends it at the same time, so it takes as long there.
TEST_F(DevicePhasesTest, ADeviceThatKeepsUpWithTheHostWaitsForItsLaunches) {
  const auto launch = [&](Phase phase, bool device_keeps_up, std::uint64_t device_ns) {
    const auto scope = timer_->phase(phase);
    work_for_us(20);
    queue_.queued_ns += device_ns;
    if (device_keeps_up) queue_.run_all();
  };
  const record::Reader record(timer_->file());
  for (int i = 0; i < 3; ++i) {
    launch(Phase::forward, true, 20'000);
    launch(Phase::backward, true, 20'000);
    launch(Phase::optimizer, true, 20'000);
    timer_->end_step({});
  }
  launch(Phase::forward, false, 20'000);  // the host runs ahead: the device is busy
  launch(Phase::backward, false, 20'000);
  timer_->end_step({});
  launch(Phase::forward, true, 900'000'000);  // the host has waited for the device in another phase
  launch(Phase::other, true, 0);
  timer_->end_step({});
  timer_->finish();
  const auto used = record.read().resources.value();
  EXPECT_EQ(used.on_device, 1U);
  EXPECT_EQ(used.launch_ns, 3U * 60'000U);
}

TEST_F(DevicePhasesTest, WorkBetweenStepsBelongsToNone) {
  step(1'000, 0, 0);
  queue_.queued_ns += 5'000;  // an evaluation
  timer_->begin_step();
  step(1'000, 0, 0);
  timer_->finish();
  EXPECT_EQ(counters().step_ns, 2'000U);
}

TEST_F(DevicePhasesTest, AnEvaluationBelongsToNoStep) {
  step(1'000, 0, 0);
  const auto evaluate = [&] {
    timer_->begin_evaluation();
    queue_.queued_ns += 5'000;
    { const auto wait = timer_->phase(Phase::data_wait); }
    queue_.queued_ns += 5'000;
    timer_->end_evaluation();
  };
  evaluate();  // between two steps
  {
    const auto forward = timer_->phase(Phase::forward);
    queue_.queued_ns += 700;
    evaluate();  // within one
    queue_.queued_ns += 300;
  }
  timer_->end_step({});
  timer_->finish();
  EXPECT_EQ(counters().step_ns, 2'000U);
  EXPECT_EQ(of(counters(), Phase::forward), 2'000U);
}

// Each mark is an event of CUDA. The program evaluates without telling the timer, and waits for data each time.
TEST_F(DevicePhasesTest, ALongEvaluationHoldsFewMarks) {
  constexpr std::uint64_t kBatches = 10'000;
  for (std::uint64_t batch = 0; batch < kBatches; ++batch) {
    const auto wait = timer_->phase(Phase::data_wait);
    queue_.queued_ns += 3;
    queue_.run_all();
  }
  EXPECT_LT(queue_.marks, kBatches / 2);
  timer_->end_step({});
  timer_->finish();
  EXPECT_EQ(of(counters(), Phase::data_wait), 3 * kBatches);
  EXPECT_EQ(queue_.marks, 0U);
}

TEST_F(DevicePhasesTest, StepsAfterTheEndOfTheRecordAreNotRecorded) {
  step(1'000, 0, 0);
  timer_->finish();
  step(1'000, 0, 0);
  timer_->finish();
  EXPECT_EQ(counters().steps, 1U);
  EXPECT_EQ(timer_->totals().steps, 2U);
}

TEST_F(DevicePhasesTest, WritingAProfileBelongsToNoStep) {
  Profiler profiler({.schedule = {.active = 1},
                     .folder = folder_.path(),
                     .rank = {.rank = 0, .node = "n1"},
                     .trace_operators = [this](bool) { queue_.queued_ns += 5'000; }});
  timer_->set_profiler(&profiler);
  step(1'000, 0, 0);
  step(1'000, 0, 0);
  timer_->finish();
  timer_->set_profiler(nullptr);
  EXPECT_EQ(counters().step_ns, 2'000U);
}

TEST_F(DevicePhasesTest, AfterTheDeviceHasFailedTheTimesAreTheHosts) {
  queue_.works = false;
  step(1'000'000'000'000, 0, 0);
  EXPECT_EQ(counters().steps, 1U);
  EXPECT_LT(counters().step_ns, 1'000'000'000'000U);
}

}  // namespace
}  // namespace lockstep::profile
