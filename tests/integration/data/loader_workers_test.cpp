// The workers: reading ahead, failures, CPUs, memory and waiting times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "common/error.h"
#include "common/job_limits.h"
#include "common/leaf/cpu_list.h"
#include "exporters/record/record.h"
#include "runtime/data/batch/host_batch.h"
#include "runtime/data/loader.h"
#include "runtime/data/loader_advice.h"
#include "runtime/data/plan/planner.h"
#include "runtime/profile/step_timer.h"
#include "tests/integration/data/loader_fixture.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST_F(LoaderTest, LeavingTheLoopEarlyLeavesNoThreads) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                         std::filesystem::directory_iterator());
  };
  const auto before = threads();
  {
    Loader loader(*reader_, options(), world(), {.workers = 3});
    for (const Batch& batch : loader) {
      EXPECT_GT(threads(), before);
      if (batch.step == 1) break;
    }
    const auto loop_that_throws = [&] {
      for (const Batch& batch : loader) {
        if (batch.step == 1) throw std::runtime_error("in the loop");
      }
    };
    EXPECT_THROW(loop_that_throws(), std::runtime_error);
    EXPECT_THAT(seen_on_all_ranks(loader), Each(1));
    for (const Batch& batch : loader) {
      if (batch.step == 1) break;
    }
  }
  EXPECT_EQ(threads(), before);
}

void wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 10'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(condition()) << "after 10 s";
}

TEST_F(LoaderTest, TheFirstBatchesOfTheNextEpochAreBuiltAhead) {
  std::atomic<std::size_t> reads = 0;
  const WatchedReader reader(*reader_, [&](std::size_t) { ++reads; });
  Loader loader(reader, alone(), 0, nullptr, {.workers = 2, .batches_ahead = 3});
  const auto first = take(loader, kAll);
  wait_until([&] { return reads > kSamples + 3; });
  loader.set_epoch(1);
  const auto second = take(loader, kAll);
  EXPECT_NE(first, second);
  PlanOptions plan = alone();
  plan.epoch = 1;
  Loader fresh(*reader_, plan, 0, nullptr, {.next_epoch_ahead = false});
  EXPECT_EQ(second, take(fresh, kAll));
  EXPECT_EQ(second, take(fresh, kAll));
  loader.set_epoch(0);  // not the one that was built ahead
  EXPECT_EQ(first, take(loader, kAll));
}

TEST_F(LoaderTest, ReadingAheadIsLimited) {
  std::atomic<std::size_t> reads = 0;
  const WatchedReader reader(*reader_, [&](std::size_t) { ++reads; });
  PlanOptions plan = alone();
  plan.cap = 60;
  Loader loader(reader, plan, 0, nullptr, {.workers = 4, .batches_ahead = 3});
  EXPECT_EQ(loader.memory().batches, 4U);
  const auto batch_bytes = loader.memory().batch;
  EXPECT_GE(batch_bytes, 60 * (8 + 8 + 1));
  const auto at = loader.begin();
  EXPECT_FALSE(at == loader.end());
  const Plan expected = make_plan(lengths_from_pack(*reader_, "test").tokens, plan);
  std::size_t ahead = 0;
  std::size_t batches = 0;
  for (std::size_t step = 0; batches < 4; ++step) {
    for (std::size_t m = 0; m < expected.micro_batches(step, 0) && batches < 4; ++m, ++batches) {
      ahead += expected.micro_batch(step, 0, m).size();
    }
  }
  wait_until([&] { return reads == ahead; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time to read too much
  EXPECT_EQ(reads, ahead);
  Loader smaller(reader, plan, 0, nullptr,
                 {.workers = 4, .batches_ahead = 3, .bytes_ahead = 2 * batch_bytes});
  EXPECT_EQ(smaller.memory().batches, 3U);
  EXPECT_THAT(smaller.describe(), HasSubstr("4 workers, 2 batches ahead: at most "));
  Loader smallest(reader, plan, 0, nullptr, {.bytes_ahead = 1});
  EXPECT_EQ(smallest.memory().batches, 2U);
}

// The report tells a loader that waits for its disk from one that computes.
TEST_F(LoaderTest, TheRecordHoldsTheTimeOfTheThreadsAndTheirProcessorTime) {
  const auto used_by = [&](const std::function<void()>& at_each_sample) {
    const lockstep::testing::TemporaryFolder folder;
    profile::StepTimer timer({.node = "n1", .program = "test"}, {.folder = folder.path()});
    const record::Reader record(timer.file());
    const WatchedReader reader(*reader_, [&](std::size_t) { at_each_sample(); });
    Loader loader(reader, alone(), 0, &timer, {.workers = 1, .next_epoch_ahead = false});
    take(loader, kAll);
    timer.finish();
    const auto used = record.read(0).resources.value();
    EXPECT_EQ(used.loader_buffer_bytes, loader.memory().total());
    EXPECT_GE(used.loader_build_ns, kSamples * 1'000'000);
    return static_cast<double>(used.loader_user_ns + used.loader_system_ns + used.loader_delay_ns) /
           static_cast<double>(used.loader_build_ns);
  };
  const double waiting = used_by([] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); });
  const double computing = used_by([] {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    const std::int64_t begin = now.tv_sec * 1'000'000'000 + now.tv_nsec;
    while (now.tv_sec * 1'000'000'000 + now.tv_nsec < begin + 1'000'000)
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  });
  EXPECT_LT(waiting, 0.7 * computing);
}

// So that the report can compare it with the time that it took.
TEST_F(LoaderTest, TheRecordHoldsTheWorkThatThePlanGaveToEachStep) {
  const auto lengths = lengths_from_pack(*reader_, "test").tokens;
  for (const bool padded : {false, true}) {
    const lockstep::testing::TemporaryFolder folder;
    profile::StepTimer timer({.node = "n1", .program = "test"}, {.folder = folder.path()});
    const record::Reader record(timer.file());
    PlanOptions plan = alone();
    plan.accumulate = 2;
    plan.padded = padded;
    plan.cost = {.a = 6, .b = 3};
    Loader loader(*reader_, plan, 0, &timer, {.next_epoch_ahead = false});
    take(loader, kAll);
    timer.finish();
    const record::Snapshot written = record.read();
    EXPECT_EQ(written.counters.cost_ratio, 2);
    const Plan expected = make_plan(lengths, plan);
    ASSERT_EQ(written.steps.size(), expected.steps());
    for (std::size_t step = 0; step < expected.steps(); ++step) {
      double cost = 0;
      for (std::size_t i = 0; i < expected.micro_batches(step, 0); ++i)
        cost += cost_of(shape_of(expected.micro_batch(step, 0, i), lengths, plan), plan.cost);
      const record::Step& found = written.steps[step];
      EXPECT_EQ(plan.cost.a * static_cast<double>(found.tokens + found.padding) +
                    plan.cost.b * static_cast<double>(found.squares),
                cost);
    }
  }
}

TEST_F(LoaderTest, BatchesThatMayNotFitIntoMemoryAreReportedBeforeTheFirstOne) {
  const LoaderMemory memory{.batch = 600, .batches = 5};
  EXPECT_EQ(advice_on_memory(memory, 2, {.available = 6000, .of = "this node"}), std::nullopt);
  EXPECT_THAT(
      advice_on_memory(memory, 3, {.available = 6000, .of = "this node"}).value(),
      HasSubstr(
          "3 loaders may need 8.79 KiB (5 batches of 600 B each), but this node has only 5.86 KiB left"));
  PlanOptions plan = options();
  plan.cap = 2'000'000'000;  // of 17 bytes
  if (world().local_rank() != 0 || available_memory().available > std::size_t{60} << 30U) {
    const Loader loader(*reader_, plan, world());
    return;
  }
  ::testing::internal::CaptureStderr();
  const Loader loader(*reader_, plan, world());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("lower bytes_ahead, batches_ahead or plan.cap"));
}

TEST_F(LoaderTest, ASamplesSeedDependsOnTheEpochButNotOnTheWorker) {
  std::mutex mutex;
  const auto seeds = [&](int workers, std::uint64_t epoch) {
    std::map<SampleId, std::uint64_t> found;
    PlanOptions plan = alone();
    plan.epoch = epoch;
    Loader loader(*reader_, plan, 0, nullptr,
                  {.workers = workers,
                   .transform =
                       [&](Sample& sample) {
                         const std::lock_guard lock(mutex);
                         EXPECT_LT(sample.worker, workers);
                         found[sample.id] = sample.seed;
                       },
                   .next_epoch_ahead = false});
    take(loader, kAll);
    return found;
  };
  const auto one = seeds(1, 0);
  EXPECT_EQ(one, seeds(3, 0));
  std::set<std::uint64_t> different;
  for (const auto& [id, seed] : one) different.insert(seed);
  for (const auto& [id, seed] : seeds(1, 1)) different.insert(seed);
  EXPECT_EQ(different.size(), 2 * kSamples);
}

TEST_F(LoaderTest, AnExceptionOfATransformEndsTheLoopByTheSamplesKey) {
  const auto loop = [&](const Transform& transform) {
    return [this, transform] {
      Loader loader(*reader_, alone(), 0, nullptr, {.workers = 2, .transform = transform});
      take(loader, kAll);
    };
  };
  EXPECT_THAT(loop([](Sample& sample) {
                if (sample.id == 42) throw std::out_of_range("no such column");
              }),
              ThrowsMessage<Error>(AllOf(HasSubstr("'s042'"), HasSubstr("no such column"))));
  EXPECT_THAT(loop([](Sample& sample) {
                if (sample.id == 42) throw 42;
              }),
              ThrowsMessage<Error>(HasSubstr("'s042'")));
  EXPECT_THAT(loop([](Sample& sample) { sample.tokens = {}; }),
              ThrowsMessage<Error>(HasSubstr("change tokens in place")));
}

TEST_F(LoaderTest, AnExceptionOfLibTorchBecomesOneLine) {
  Loader loader(*reader_, alone(), 0, nullptr, {.transform = [](Sample& sample) {
    if (sample.id == 42) torch::zeros({2}) + torch::zeros({3});
  }});
  EXPECT_THAT(
      [&] { take(loader, kAll); },
      ThrowsMessage<Error>(AllOf(HasSubstr("'s042'"), HasSubstr("must match"), Not(HasSubstr("\n")))));
  const auto buffers = std::make_shared<BatchBuffers>(std::size_t{1} << 50U, false);
  EXPECT_THAT([&] { buffers->take(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("1.00 PiB of memory for a batch"), Not(HasSubstr("\n")))));
}

TEST_F(LoaderTest, AWorkerThatDiesEndsTheLoop) {
  Loader loader(*reader_, alone(), 0, nullptr, {.workers = 1, .transform = [](Sample& sample) {
                                                  if (sample.id == 42) pthread_exit(nullptr);
                                                }});
  const auto loop = [&] { take(loader, kAll); };
  EXPECT_THAT(loop, ThrowsMessage<Error>(AllOf(HasSubstr("worker thread was ended"), HasSubstr("'s042'"))));
  EXPECT_THAT(loop, ThrowsMessage<Error>(HasSubstr("worker thread was ended"))) << "it must not hang later";
}

TEST_F(LoaderTest, ABatchThatIsReadyCountsNoWaitingTime) {
  profile::StepTimer timer({}, {.record = false, .folder = {}});
  std::atomic<std::size_t> reads = 0;
  const WatchedReader reader(*reader_, [&](std::size_t) {
    if (reads++ == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the loop waits for the first batch
  });
  PlanOptions plan = alone();
  plan.cap = 100'000;
  plan.accumulate = 4;
  Loader loader(reader, plan, 0, &timer, {.batches_ahead = 4, .next_epoch_ahead = false});
  timer.begin_step();
  auto at = loader.begin();
  wait_until([&] { return reads == kSamples; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until the last sample's batch is complete
  timer.end_step({});
  for (; at != loader.end(); ++at) {
  }
  timer.end_step({});
  EXPECT_EQ(timer.last_step().phase_ns[static_cast<std::size_t>(profile::Phase::data_wait)], 0U);
  EXPECT_GT(timer.totals().phase_ns[static_cast<std::size_t>(profile::Phase::data_wait)], 0U);
}

TEST_F(LoaderTest, AdvisesANumberOfWorkers) {
  const WatchedReader slow(*reader_,
                           [](std::size_t) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  Loader loader(slow, alone(), 0, nullptr, {.workers = 1});
  EXPECT_EQ(loader.advice().workers, 0);
  take(loader, kAll);
  const LoaderAdvice hungry = loader.advice();
  EXPECT_GT(hungry.workers, 4) << "the loop does nothing with its batches";
  EXPECT_GT(hungry.waited_seconds, 0.05);
  EXPECT_EQ(hungry.memory.total(),
            hungry.memory.batch * (1 + static_cast<std::size_t>(hungry.batches_ahead)));
  Loader idle(*reader_, alone(), 0, nullptr, {.workers = 1});
  for (const Batch& batch : idle) {
    EXPECT_GE(batch.step, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(idle.advice().workers, 1);
  EXPECT_THAT(to_text(idle.advice()), HasSubstr("1 worker and 2 batches ahead suffice"));
}

TEST_F(LoaderTest, ASampleThatCannotBeReadEndsTheLoopByItsKey) {
  const WatchedReader reader(*reader_, [](std::size_t i) {
    if (i == 42) throw Error("the shard is gone");
  });
  Loader loader(reader, alone(), 0, nullptr, {.workers = 2});
  std::int64_t batches = 0;
  const auto loop = [&] {
    for (const Batch& batch : loader) batches += batch.empty ? 0 : 1;
  };
  EXPECT_THAT(loop, ThrowsMessage<Error>(AllOf(HasSubstr("'s042'"), HasSubstr("the shard is gone"))));
  const Plan whole = make_plan(lengths_from_pack(*reader_, "test").tokens, alone());
  std::size_t planned = 0;
  for (std::size_t step = 0; step < whole.steps(); ++step) planned += whole.micro_batches(step, 0);
  EXPECT_LT(batches, static_cast<std::int64_t>(planned));
  EXPECT_THAT(loop, ThrowsMessage<Error>(HasSubstr("'s042'"))) << "also in another loop";
}

TEST_F(LoaderTest, BatchesThatAreKeptAreNotOverwritten) {
  Loader loader(*reader_, alone(), 0, nullptr, {.batches_ahead = 1});
  std::vector<Batch> kept;
  std::vector<torch::Tensor> parts;
  for (const Batch& batch : loader) {
    if (batch.empty) continue;
    if (kept.size() % 2 == 0) {
      kept.push_back(batch);
    } else {
      kept.push_back({});
      parts.push_back(batch.tokens.narrow(0, 0, 1));  // a view alone holds the memory, too
      kept.back().sample_ids = batch.sample_ids;
    }
  }
  std::size_t part = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto sample = static_cast<std::size_t>(kept[i].sample_ids[0].item<std::int64_t>());
    const torch::Tensor first = i % 2 == 0 ? kept[i].tokens[0] : parts[part++][0];
    EXPECT_EQ(first.item<std::int64_t>(), token_of(sample, 0)) << "batch " << i;
  }
}

TEST_F(LoaderTest, MemoryOfReleasedBatchesIsReused) {
  Loader loader(*reader_, alone(), 0, nullptr, {.workers = 1, .batches_ahead = 2});
  std::set<const void*> addresses;
  std::size_t batches = 0;
  for (const Batch& batch : loader) {
    addresses.insert(batch.tokens.data_ptr());
    ++batches;
  }
  EXPECT_GT(batches, 10U);
  // Two tensors for each of four batches: two ready, one in use, one being built.
  EXPECT_LE(addresses.size(), 8U);
}

TEST_F(LoaderTest, WaitingIsTimedAsDataWait) {
  const WatchedReader reader(*reader_,
                             [](std::size_t) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  profile::StepTimer timer({}, {.record = false, .folder = {}});
  Loader loader(reader, alone(), 0, &timer, {.workers = 1});
  timer.begin_step();
  std::uint64_t batches = 0;
  for (const Batch& batch : loader) batches += batch.empty ? 0U : 1U;
  timer.end_step({});
  const auto waited = timer.totals().phase_ns[static_cast<std::size_t>(profile::Phase::data_wait)];
  EXPECT_GT(batches, 0U);
  EXPECT_GE(waited, kSamples * 500'000) << "reading each sample took 1 ms";
  EXPECT_LE(waited, timer.totals().step_ns);
}

TEST_F(LoaderTest, WorkersRunOnTheWorkerCpusOrOnAllCpusOfTheTask) {
  const std::vector<int> all = cpus_of_this_thread();
  const auto masks_with = [&](const char* variable, const std::vector<int>& cpus) {
    setenv(variable, format_cpu_list(cpus).c_str(), 1);
    std::mutex mutex;
    std::set<std::vector<int>> masks;
    const WatchedReader reader(*reader_, [&](std::size_t) {
      const std::lock_guard lock(mutex);
      masks.insert(cpus_of_this_thread());
    });
    {
      Loader loader(reader, alone(), 0, nullptr, {.workers = 2});
      for (const Batch& batch : loader) EXPECT_GE(batch.step, 0);
    }
    unsetenv(variable);
    return masks;
  };
  EXPECT_EQ(masks_with("LOCKSTEP_WORKER_CPUS", {all.back()}), std::set<std::vector<int>>{{all.back()}});
  bind_this_thread({all.front()});  // as OpenMP does
  EXPECT_EQ(masks_with("LOCKSTEP_CPUS", all), std::set<std::vector<int>>{all});
  bind_this_thread(all);
}

}  // namespace
}  // namespace lockstep::data
