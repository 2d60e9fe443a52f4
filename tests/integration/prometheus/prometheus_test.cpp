// Every rank runs this with LOCKSTEP_PROMETHEUS and LOCKSTEP_PROMETHEUS_TARGETS set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/metric_family.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "common/sockets.h"
#include "exporters/record/record.h"
#include "runtime/comm/metrics_server.h"
#include "runtime/prometheus/collectable.h"
#include "runtime/prometheus/node_collectable.h"
#include "tests/integration/mpi_world.h"
#include "tests/unit/exporters/parsed_page.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using testing::world;

std::string get(int port) {
  const UniqueFd connection = connect_to({"127.0.0.1"}, port, std::chrono::seconds(10), "the exposer");
  send_all(connection, "GET /metrics HTTP/1.0\r\n\r\n", "the exposer");
  std::string page;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = ::read(connection.get(), buffer.data(), buffer.size())) != 0;) {
    if (got < 0 && errno != EAGAIN && errno != EINTR) break;
    if (got > 0) page.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return page.substr(page.find("\r\n\r\n") + 4);
}

const ::prometheus::MetricFamily* find(const std::vector<::prometheus::MetricFamily>& families,
                                       const std::string& name) {
  for (const auto& family : families) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

TEST(Prometheus, TheFirstRankServesAllRanksOfTheNodeAndNamesItsAddressForFileSd) {
  world().timer().begin_step();
  world().timer().end_step({.tokens = 7, .samples = 1, .padding = 0});
  testing::any_rank(false);  // all have ended a step
  if (world().rank() != 0) return;
  const std::string step = world().timer().file().parent_path().filename();
  const std::filesystem::path target =
      std::filesystem::path(*environment::get("LOCKSTEP_PROMETHEUS_TARGETS")) /
      (step + "-" + world().node_name() + ".json");
  const auto targets = nlohmann::json::parse(read_text_file(target));
  const std::string address = targets.at(0).at("targets").at(0);
  ASSERT_THAT(address, ::testing::StartsWith("127.0.0.1:"));
  const auto page = testing::parse_page(get(std::stoi(address.substr(10))));
  ASSERT_EQ(page.samples.at("lockstep_tokens_total").size(), static_cast<std::size_t>(world().size()));
  for (const auto& sample : page.samples.at("lockstep_tokens_total")) {
    EXPECT_EQ(sample.value, 7);
    EXPECT_EQ(sample.labels.at("node"), world().node_name());
    EXPECT_EQ(sample.labels.at("job_id") + "." + sample.labels.at("step_id"), step);
  }
  EXPECT_EQ(page.label("lockstep_job_info", "program"), "prometheus_test");
  EXPECT_EQ(page.label("lockstep_job_info", "user"), std::to_string(::geteuid()));
}

TEST(Prometheus, ACollectableHasThisNodesRanks) {
  const auto families = prometheus_collectable(world())->Collect();
  const auto* up = find(families, "lockstep_rank_up");
  ASSERT_NE(up, nullptr);
  ASSERT_EQ(up->metric.size(), static_cast<std::size_t>(world().local_size()));
  EXPECT_EQ(up->metric[0].gauge.value, 1);
  const auto* steps = find(families, "lockstep_steps_total");
  ASSERT_NE(steps, nullptr);
  EXPECT_EQ(steps->type, ::prometheus::MetricType::Counter);
}

TEST(Prometheus, RecordsOfOtherStepsAndBrokenOnesAreLeftOut) {
  const testing::TemporaryFolder folder;
  const auto record = [&](int rank, record::Identity identity) {
    identity.rank = rank;
    return record::Writer(folder / fmt::format("rank-{:06}.record", rank), identity);
  };
  const record::Identity mine{.job_id = 7, .step_id = 1, .size = 6, .node = "n1", .program = "train"};
  const auto own = record(0, mine);
  const auto other_step = record(1, {.job_id = 7, .step_id = 2, .size = 6, .node = "n1"});
  const auto other_size = record(2, {.job_id = 7, .step_id = 1, .size = 8, .node = "n1"});
  const auto other_node = record(3, {.job_id = 7, .step_id = 1, .size = 6, .node = "n2"});
  const auto second = record(4, mine);
  write_file_atomically(folder / "rank-000005.record", "half");
  const auto families = NodeCollectable(own.path()).Collect();
  const auto* up = find(families, "lockstep_rank_up");
  ASSERT_NE(up, nullptr);
  EXPECT_EQ(up->metric.size(), 2);
  EXPECT_TRUE(NodeCollectable({}).Collect().empty());
  EXPECT_TRUE(NodeCollectable(folder / "none/rank-000000.record").Collect().empty());
}

TEST(Prometheus, AnAddressThatCannotBeUsedIsOneLine) {
  const auto says = [](const std::string& listen, const std::filesystem::path& record, const char* words) {
    EXPECT_THAT([&] { lockstep_start_metrics_server(listen, record); },
                ThrowsMessage<Error>(HasSubstr(words)))
        << listen;
  };
  const std::filesystem::path record = world().timer().file();
  says("9400x", record, "give PORT or ADDRESS:PORT");
  says(":9400", record, "give PORT or ADDRESS:PORT");
  says("70000", record, "give PORT or ADDRESS:PORT");
  says("0", {}, "writes no record");
  int port = 0;
  const UniqueFd taken = listen_on(0, 0, port);
  says(fmt::format("127.0.0.1:{}", port), record, "another job may use the port");
}

// The last test: this server's file has the name of the World's.
TEST(Prometheus, TheTargetGoesWithTheServer) {
  if (world().rank() != 0) return;
  const std::filesystem::path record = world().timer().file();
  const std::filesystem::path target =
      std::filesystem::path(*environment::get("LOCKSTEP_PROMETHEUS_TARGETS")) /
      (record.parent_path().filename().string() + "-" + world().node_name() + ".json");
  auto server = lockstep_start_metrics_server("127.0.0.1:0", record);
  EXPECT_TRUE(std::filesystem::exists(target));
  server.reset();
  EXPECT_FALSE(std::filesystem::exists(target));
}

}  // namespace
}  // namespace lockstep
