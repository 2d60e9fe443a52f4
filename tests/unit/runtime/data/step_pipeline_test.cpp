#include "runtime/data/plan/step_pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>

namespace lockstep::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<DealtStep> places() {
  const PlanOptions options{.ranks = 2, .cap = 100};
  std::vector<DealtStep> places;
  places.reserve(32);
  for (int i = 0; i < 32; ++i) places.push_back({StepPacker(options), 0});
  return places;
}

// A step's number and how often it was exchanged; `first` is its place here.
struct Steps {
  std::size_t count;
  std::vector<std::atomic<int>> exchanges;
  std::vector<std::size_t> finished = {};
  std::size_t dealt = 0;

  explicit Steps(std::size_t all) : count(all), exchanges(all) {}
  auto deal() {
    return [this](DealtStep& step) { return dealt < count && (step.first = dealt++, true); };
  }
  auto exchange() {
    return [this](DealtStep& step) { ++exchanges[step.first]; };
  }
  auto finish() {
    return [this](DealtStep& step) {
      EXPECT_EQ(exchanges[step.first], 1) << "step " << step.first;
      finished.push_back(step.first);
    };
  }
};

TEST(StepPipeline, StepsAreExchangedAndFinishedOnceInTheirOrder) {
  for (const std::size_t count : {0U, 1U, 7U, 8U, 9U, 31U, 32U, 33U, 5000U}) {
    Steps steps(count);
    std::vector<DealtStep> all = places();
    in_pipeline(all, steps.deal(), steps.exchange(), steps.finish(), [] { return false; });
    ASSERT_EQ(steps.finished.size(), count);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(steps.finished[i], i);
  }
}

TEST(StepPipeline, TheDealingThreadExchangesWhatWouldKeepItWaiting) {
  Steps steps(64);
  const std::thread::id dealing = std::this_thread::get_id();
  std::atomic<int> helped = 0;
  std::vector<DealtStep> all = places();
  in_pipeline(
      all, steps.deal(),
      [&](DealtStep& step) {
        ++steps.exchanges[step.first];
        if (std::this_thread::get_id() == dealing) {
          ++helped;
          helped.notify_one();
        } else {
          helped.wait(0);  // for as long as nobody helps, the first step is not finished
        }
      },
      steps.finish(), [] { return false; });
  EXPECT_GT(helped, 0);
  EXPECT_EQ(steps.finished.size(), 64U);
}

TEST(StepPipeline, WaitingIsSpentUntilNothingIsLeft) {
  for (const bool slow_to_finish : {true, false}) {
    Steps steps(64);
    std::atomic<int> left = 40;
    const auto meanwhile = [&] {
      if (left == 0) return false;
      --left;
      left.notify_all();
      return true;
    };
    // One side stands still until the other has spent its waiting.
    const auto stand = [&] {
      for (int now = left; now > 0; now = left) left.wait(now);
    };
    std::vector<DealtStep> all = places();
    in_pipeline(
        all,
        [&](DealtStep& step) {
          if (!slow_to_finish && steps.dealt == 5) stand();
          return steps.deal()(step);
        },
        steps.exchange(),
        [&](DealtStep& step) {
          if (slow_to_finish && step.first == 5) stand();
          steps.finish()(step);
        },
        meanwhile);
    EXPECT_EQ(left, 0);
    EXPECT_EQ(steps.finished.size(), 64U);
  }
}

TEST(StepPipeline, OneThreadSpendsItsWaitingAtATime) {
  Steps steps(64);
  const std::thread::id dealing = std::this_thread::get_id();
  std::atomic<bool> inside = false;
  std::atomic<bool> refused = false;
  std::vector<DealtStep> all = places();
  in_pipeline(
      all,
      [&](DealtStep& step) {
        inside.wait(false);
        return steps.deal()(step);
      },
      [&](DealtStep& step) {
        ++steps.exchanges[step.first];
        if (std::this_thread::get_id() != dealing) return;
        refused = true;
        refused.notify_one();
      },
      steps.finish(),
      [&] {
        if (std::this_thread::get_id() == dealing) {
          EXPECT_TRUE(refused) << "the other one is at it";
        } else if (!inside.exchange(true)) {
          inside.notify_one();
          refused.wait(false);
        }
        return false;
      });
  EXPECT_EQ(steps.finished.size(), 64U);
}

TEST(StepPipeline, WhatEitherThreadThrowsIsThrownAndNothingHangs) {
  for (const std::size_t at : {0U, 5U, 40U, 900U}) {
    for (const std::string where : {"dealing", "exchanging", "finishing", "waiting"}) {
      Steps steps(1000);
      std::atomic<bool> thrown = false;
      std::vector<DealtStep> all = places();
      const auto run = [&] {
        in_pipeline(
            all,
            [&](DealtStep& step) {
              if (where == "dealing" && steps.dealt == at) throw std::runtime_error(where);
              return steps.deal()(step);
            },
            [&](DealtStep& step) {
              if (where == "exchanging" && step.first == at) throw std::runtime_error(where);
            },
            [&](DealtStep& step) {
              if (where == "finishing" && step.first == at) throw std::runtime_error(where);
            },
            [&] {
              if (where == "waiting" && !thrown.exchange(true)) throw std::runtime_error(where);
              return false;
            });
        // Where no thread ever waited, there was nothing to throw.
        if (where == "waiting" && !thrown) throw std::runtime_error(where);
      };
      EXPECT_THAT(run, ThrowsMessage<std::runtime_error>(HasSubstr(where))) << "at step " << at;
    }
  }
}

// It is the thread that deals on which this fails: the other one must not go on to wait for it.
TEST(StepPipeline, AFailedExchangeOfTheDealingThreadEndsBoth) {
  Steps steps(1000);
  const std::thread::id dealing = std::this_thread::get_id();
  std::atomic<bool> failed = false;
  std::vector<DealtStep> all = places();
  const auto run = [&] {
    in_pipeline(
        all, steps.deal(),
        [&](DealtStep&) {
          if (std::this_thread::get_id() != dealing) return failed.wait(false);
          failed = true;
          failed.notify_one();
          throw std::runtime_error("exchanging");
        },
        [&](DealtStep& step) { steps.finished.push_back(step.first); }, [] { return false; });
  };
  EXPECT_THAT(run, ThrowsMessage<std::runtime_error>(HasSubstr("exchanging")));
  EXPECT_LT(steps.finished.size(), 32U);
}

}  // namespace
}  // namespace lockstep::data
