// Where steps end without end_step().
#include <functional>
#include <vector>

#include "tests/unit/runtime/profile/step_timer_fixture.h"

namespace lockstep::profile {
namespace {

// The calls that DistributedDataParallel makes in a step of two micro-batches.
const int kModel = 0;  // its address stands for the model

void two_micro_batches(StepTimer& timer) {
  for (const bool last : {false, true}) {
    timer.begin_training_forward(&kModel);
    { const auto scope = timer.phase(Phase::forward); }
    {
      const auto scope = timer.phase(Phase::backward);
      timer.add_backward_tokens(10);
      if (last) timer.note_synchronised(&kModel);
    }
  }
}

TEST_F(StepTimerTest, StepEndsWhenTheForwardAfterASynchronisedBackwardBegins) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  two_micro_batches(timer);
  work_for_us(2000);  // the optimizer's step belongs to the step
  EXPECT_EQ(timer.totals().steps, 0);
  two_micro_batches(timer);
  EXPECT_EQ(timer.totals().steps, 1);
  EXPECT_EQ(timer.last_step().counts.tokens, 20);
  EXPECT_GE(ns(timer.last_step(), Phase::other), 2'000'000);
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 2);
  const Snapshot read = Reader(timer.file()).read();
  EXPECT_EQ(read.counters.steps, 2);
  EXPECT_EQ(read.counters.tokens, 40);
}

TEST_F(StepTimerTest, WaitForDataAfterASynchronisedBackwardBelongsToTheNextStep) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  two_micro_batches(timer);
  {
    const auto scope = timer.phase(Phase::data_wait);
    work_for_us(2000);
  }
  EXPECT_EQ(timer.totals().steps, 1);
  EXPECT_EQ(ns(timer.last_step(), Phase::data_wait), 0);
  two_micro_batches(timer);
  timer.finish();
  EXPECT_GE(ns(timer.last_step(), Phase::data_wait), 2'000'000);
}

TEST_F(StepTimerTest, EndStepOfTheProgramReplacesStepsThatEndOnTheirOwn) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  for (int step = 0; step < 3; ++step) {
    two_micro_batches(timer);
    timer.end_step({.tokens = 7, .samples = 1, .padding = 0});
    EXPECT_EQ(timer.last_step().counts.tokens, 7);
  }
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 3);
}

TEST_F(StepTimerTest, BatchesThatAreOnlyEvaluatedDoNotCount) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  timer.request_batch(true);
  timer.add_batch({.tokens = 5, .samples = 2, .padding = 1}, true);
  timer.begin_training_forward(&kModel);
  timer.add_backward_tokens(4);  // the loader's numbers are used: they have samples and padding
  timer.note_synchronised(&kModel);
  timer.request_batch(true);
  EXPECT_EQ(timer.totals().steps, 1);
  for (int batch = 0; batch < 3; ++batch) {
    timer.add_batch({.tokens = 100, .samples = 1, .padding = 0}, true);
    timer.request_batch(true);
  }
  EXPECT_EQ(timer.totals().steps, 1);
  timer.finish();
  EXPECT_EQ(timer.totals().counts.tokens, 5);
  EXPECT_EQ(timer.totals().counts.samples, 2);
  EXPECT_EQ(timer.totals().counts.padding, 1);
}

TEST_F(StepTimerTest, LoadersStepEndsOnceThoughEachMicroBatchIsSynchronised) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  for (int batch = 0; batch < 4; ++batch) {
    timer.request_batch(batch % 2 == 0);
    timer.add_batch({.tokens = 5, .samples = 1, .padding = 0}, batch % 2 == 1);
    timer.begin_training_forward(&kModel);
    timer.note_synchronised(&kModel);
  }
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 2);
  EXPECT_EQ(timer.last_step().counts.tokens, 10);
}

// A GAN: two models, each with its own synchronised backward.
TEST_F(StepTimerTest, TwoModelsInOneLoopMakeOneStep) {
  StepTimer timer(identity_);
  const int other_model = 1;
  timer.add_model(&kModel);
  timer.add_model(&other_model);
  const auto train = [&](const int* model) {
    timer.begin_training_forward(model);
    { const auto scope = timer.phase(Phase::forward); }
    timer.note_synchronised(model);
  };
  for (int step = 0; step < 5; ++step) {
    { const auto scope = timer.phase(Phase::data_wait); }
    train(&kModel);
    { const auto scope = timer.phase(Phase::data_wait); }  // noise for the other model
    train(&other_model);
  }
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 5);
}

TEST_F(StepTimerTest, AModelThatIsTrainedMoreOftenThanTheOthersEndsTheSteps) {
  StepTimer timer(identity_);
  const int other_model = 1;
  timer.add_model(&kModel);
  timer.add_model(&other_model);
  for (int step = 0; step < 6; ++step) {
    timer.begin_training_forward(&kModel);
    timer.note_synchronised(&kModel);
    if (step % 3 != 2) continue;
    timer.begin_training_forward(&other_model);
    timer.note_synchronised(&other_model);
  }
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 6);
}

TEST_F(StepTimerTest, ForwardWithoutGradientsIsNotTheNextStepsForward) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  const auto without_gradients = [&](bool evaluation) {
    const auto scope = timer.begin_forward_without_gradients();
    work_for_us(20'000);
    if (evaluation) timer.end_evaluation_forward();
  };
  two_micro_batches(timer);
  for (int batch = 0; batch < 3; ++batch) without_gradients(true);
  EXPECT_EQ(timer.totals().steps, 1) << "an evaluation begins when the step has ended";
  two_micro_batches(timer);
  without_gradients(false);  // such as samples for the next backward
  two_micro_batches(timer);
  EXPECT_EQ(timer.totals().steps, 2);
  EXPECT_LT(timer.last_step().step_ns, 60'000'000) << "the evaluation belongs to no step";
  timer.finish();
  EXPECT_GE(ns(timer.last_step(), Phase::other), 20'000'000);
  EXPECT_LT(ns(timer.last_step(), Phase::forward), 20'000'000);
}

// A Validation calls the module itself, and waits for batches of a loader of its own.
TEST_F(StepTimerTest, AnEvaluationEndsTheStepAndBelongsToNone) {
  constexpr std::uint64_t kLong = 20'000;
  for (const bool with_loader : {false, true}) {
    StepTimer timer(identity_);
    timer.add_model(&kModel);
    const auto evaluate = [&] {
      timer.begin_evaluation();
      timer.begin_evaluation();  // of a second model
      if (with_loader) timer.request_batch(true);
      {
        const auto wait = timer.phase(Phase::data_wait);
        work_for_us(kLong);
      }
      if (with_loader) timer.add_batch({.tokens = 1000, .samples = 1, .padding = 0}, true);
      timer.end_evaluation();
      work_for_us(kLong);
      timer.end_evaluation();
    };
    evaluate();  // before the training
    for (int step = 1; step <= 3; ++step) {
      if (with_loader) timer.request_batch(true);
      if (with_loader) timer.add_batch({.tokens = 20, .samples = 1, .padding = 0}, true);
      two_micro_batches(timer);
      evaluate();
      EXPECT_EQ(timer.totals().steps, step) << "it ends the step";
    }
    two_micro_batches(timer);
    timer.finish();
    EXPECT_EQ(timer.totals().steps, 4);
    EXPECT_EQ(timer.totals().counts.tokens, 80);
    EXPECT_LT(timer.totals().step_ns, kLong * 1000);
    EXPECT_EQ(sum(timer.totals()), timer.totals().step_ns);
    EXPECT_EQ(Reader(timer.file()).read().counters.step_ns, timer.totals().step_ns);
  }
}

// Such as one between the micro-batches of a step, or before the program's end_step().
TEST_F(StepTimerTest, AnEvaluationWithinAStepIsLeftOut) {
  StepTimer timer(identity_);
  {
    const auto scope = timer.phase(Phase::forward);
    work_for_us(2000);
    timer.begin_evaluation();
    work_for_us(20'000);
    timer.end_evaluation();
    work_for_us(2000);
  }
  timer.end_step({});
  EXPECT_EQ(timer.totals().steps, 1);
  EXPECT_GE(ns(timer.last_step(), Phase::forward), 4'000'000);
  EXPECT_LT(timer.last_step().step_ns, 20'000'000);
  EXPECT_EQ(sum(timer.last_step()), timer.last_step().step_ns);
}

TEST_F(StepTimerTest, AnEvaluationWithoutModelsDoesNotMakeSteps) {
  StepTimer timer(identity_);
  const auto batch = [&] {
    timer.request_batch(true);
    timer.add_batch({.tokens = 5, .samples = 1, .padding = 0}, true);
  };
  for (int step = 1; step <= 3; ++step) {
    batch();
    timer.begin_evaluation();
    EXPECT_EQ(timer.totals().steps, step);
    batch();
    batch();
    timer.end_evaluation();
  }
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 3);
  EXPECT_EQ(timer.totals().counts.tokens, 15);
}

// Each of the events that end a step, when it comes first.
TEST_F(StepTimerTest, AStepEndsAtTheFirstOfItsEvents) {
  const std::vector<std::function<void(StepTimer&)>> events = {
      [](StepTimer& timer) { timer.begin_training_forward(&kModel); },
      [](StepTimer& timer) { const auto wait = timer.phase(Phase::data_wait); },
      [](StepTimer& timer) { timer.request_batch(true); },
      [](StepTimer& timer) { const auto forward = timer.begin_forward_without_gradients(); },
      [](StepTimer& timer) { timer.begin_evaluation(); },
      [](StepTimer& timer) { timer.begin_step(); },
      [](StepTimer& timer) { timer.finish(); }};
  for (std::size_t first = 0; first < events.size(); ++first) {
    StepTimer timer(identity_);
    timer.add_model(&kModel);
    for (const auto& event : events) event(timer);
    timer.end_evaluation();
    EXPECT_EQ(timer.totals().steps, 0) << "nothing is trained";
    two_micro_batches(timer);
    { const auto optimizer = timer.phase(Phase::optimizer); }
    EXPECT_EQ(timer.totals().steps, 0) << first;
    for (std::size_t i = 0; i < events.size(); ++i) {
      events[(first + i) % events.size()](timer);
      EXPECT_EQ(timer.totals().steps, 1) << first << " " << i;
    }
  }
}

// A model that is replaced must not join two steps.
TEST_F(StepTimerTest, AModelThatIsMadeAfterAStepDoesNotDelayItsEnd) {
  StepTimer timer(identity_);
  const int next_model = 1;
  timer.add_model(&kModel);
  two_micro_batches(timer);
  timer.remove_model(&kModel);
  timer.add_model(&next_model);
  timer.begin_training_forward(&next_model);
  EXPECT_EQ(timer.totals().steps, 1);
  timer.note_synchronised(&next_model);
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 2);
}

TEST_F(StepTimerTest, LoaderAloneEndsSteps) {
  StepTimer timer(identity_);
  for (int batch = 0; batch < 4; ++batch) {
    timer.request_batch(batch % 2 == 0);
    timer.add_batch({.tokens = 5, .samples = 1, .padding = 0}, batch % 2 == 1);
  }
  timer.request_batch(true);  // the end of the epoch
  timer.request_batch(true);  // and the next one's first batch
  EXPECT_EQ(timer.totals().steps, 2);
  EXPECT_EQ(timer.totals().counts.tokens, 20);
}

// Such as a label that the program fetches between the micro-batches of a step.
TEST_F(StepTimerTest, AWaitOfTheProgramDoesNotEndALoadersStepBeforeItsLastBatch) {
  StepTimer timer(identity_);
  for (int batch = 0; batch < 4; ++batch) {
    timer.request_batch(batch % 2 == 0);
    timer.add_batch({.tokens = 5, .samples = 1, .padding = 0}, batch % 2 == 1);
    const auto wait = timer.phase(Phase::data_wait);
  }
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 2);
  EXPECT_EQ(timer.last_step().counts.tokens, 10);
}

TEST_F(StepTimerTest, WaitingForAnyRangeIsTimed) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  struct Slow {
    struct Iterator {
      int at;
      int operator*() const { return at; }
      void operator++() {
        work_for_us(2000);
        ++at;
      }
      bool operator!=(const Iterator& other) const { return at != other.at; }
    };
    static Iterator begin() { return {0}; }
    static Iterator end() { return {3}; }
  } slow;
  int seen = 0;
  for (const int batch : timed_batches(timer, slow)) {
    EXPECT_EQ(batch, seen++);
    timer.begin_training_forward(&kModel);
    timer.note_synchronised(&kModel);
  }
  timer.finish();
  EXPECT_EQ(seen, 3);
  // The wait for the end belongs to a fourth step, which has no backward and does not end.
  EXPECT_EQ(timer.totals().steps, 3);
  EXPECT_EQ(ns(timer.last_step(), Phase::data_wait) >= 2'000'000, true);
}

}  // namespace
}  // namespace lockstep::profile
