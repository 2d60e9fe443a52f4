// The loader's copies to a device whose calls fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "runtime/data/batch/batch_builder.h"
#include "runtime/data/batch/device_copy.h"
#include "runtime/data/epoch_cursor.h"
#include "runtime/data/loader_setup.h"
#include "tests/device/device_of_rank.h"
#include "tests/device/simulation.h"
#include "tests/integration/data/loader_fixture.h"

namespace lockstep::data {
namespace {

using simulated::Fault;
using simulated::inject;
using ::testing::IsEmpty;

class LoaderCopy : public LoaderTest {
 protected:
  void TearDown() override {
    inject(Fault::cudart, 0);
    EXPECT_THAT(simulated::take_findings(), IsEmpty());
  }
};

std::vector<std::int64_t> ids_of(const Batch& batch) {
  const auto* const data = batch.sample_ids.data_ptr<std::int64_t>();
  return {data, data + batch.sample_ids.size(0)};
}

// The first calls of the copies that ++ finishes and begins: those after them free memory, which must not fail.
TEST_F(LoaderCopy, LosesNoBatchWhenItFails) {
  const PlanOptions plan = alone();
  std::vector<std::vector<std::int64_t>> expected;
  Loader host(*reader_, plan, 0, nullptr);
  for (const Batch& batch : host) expected.push_back(ids_of(batch));
  LoaderOptions options;
  options.device = testing::device();
  int thrown = 0;
  for (int call = 1; call <= 8; ++call) {
    Loader loader(*reader_, plan, 0, nullptr, options);
    std::vector<std::vector<std::int64_t>> found;
    auto at = loader.begin();
    while (at != Loader::End{}) {
      const Batch held = *at;  // freed when no call fails
      found.push_back(ids_of(held));
      inject(Fault::cudart, call);
      try {
        ++at;
        inject(Fault::cudart, 0);
      } catch (const std::exception&) {
        inject(Fault::cudart, 0);
        ++thrown;
        ++at;
      }
    }
    EXPECT_EQ(found, expected) << "call " << call;
  }
  EXPECT_GT(thrown, 0);
}

TEST_F(LoaderCopy, EndsWithADeviceThatHasFailed) {
  const PlanOptions plan = alone();
  const Lengths lengths = planned_lengths(*reader_, plan, {});
  const LengthsInMemory source(lengths.tokens, lengths.fingerprint);
  EpochCursor cursor([&](const PlanOptions& epoch) { return make_planner(source, epoch, {}); },
                     {.plan = plan, .rank = 0});
  cursor.move_to(0, nullptr);
  BuildOptions options;
  options.plan = plan;
  options.page_locked = true;
  options.for_device = true;
  BatchBuilder builder(*reader_, lengths.tokens, options);
  auto copy = std::make_optional<DeviceCopy>(testing::device());
  const Batch batch = copy->finish(copy->begin(builder.build(cursor.next().value(), 0)));
  batch.tokens.cpu();  // the copy has ended
  inject(Fault::cudart, 1);
  copy.reset();
  inject(Fault::cudart, 0);
}

}  // namespace
}  // namespace lockstep::data
