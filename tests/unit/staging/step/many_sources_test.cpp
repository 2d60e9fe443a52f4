// Every source costs the same number of system calls for files, however many sources there are.

#include <atomic>

#include "staging/step/stage_step.h"
#include "staging/transfer/put.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using staging_test::HookedFileSystem;
using staging_test::real_call;
using Kind = FileCall::Kind;

class ManySources : public staging_test::StagingTest {
 protected:
  std::vector<std::string> make_sources(int count) const {
    std::vector<std::string> sources;
    for (int i = 0; i < count; ++i) {
      const fs::path name = fmt::format("source{}/data", i);
      write(name, "x");
      sources.push_back((folder_ / name.parent_path()).string());
    }
    return sources;
  }
};

TEST_F(ManySources, CostAFewCallsEach) {
  const std::vector<std::string> sources = make_sources(60);
  const auto calls_for = [&](std::size_t count, const std::string& cache) {
    std::atomic<int> calls = 0;  // that open a file or read its status
    HookedFileSystem system([&](const FileCall& call) {
      if (call.kind == Kind::open || call.kind == Kind::lstat) ++calls;
      return real_call(call);
    });
    PutOptions options;
    options.cache_dir = folder_ / cache;
    options.limits.quota = std::uint64_t{1} << 40U;
    options.limits.min_free = 1;
    options.file_system = &system;
    put({sources.begin(), sources.begin() + static_cast<std::ptrdiff_t>(count)}, options);
    return calls.load();
  };
  const int few = calls_for(10, "few");
  const int many = calls_for(60, "many");
  EXPECT_LT(many, 6 * few + few) << few << " for 10, " << many << " for 60";
}

TEST_F(ManySources, OfAStepAreRecordedAtOnce) {
  std::atomic<int> notes = 0;
  HookedFileSystem system([&](const FileCall& call) {
    if (call.kind == Kind::rename && fs::path(call.to).filename() == "staged.json") ++notes;
    return real_call(call);
  });
  fs::create_directory(folder_ / "cache");
  StepCall call(StepRequest{
      .job = 7, .step = "0", .node = "n1", .sources = make_sources(20), .store = folder_ / "cache"});
  call.put.file_system = &system;
  stage_step(call);
  EXPECT_EQ(notes, 1);
  EXPECT_EQ(FileSystem::real().list(folder_ / "cache/jobs/7/data").size(), 20U);
}

}  // namespace
}  // namespace lockstep::transfer
