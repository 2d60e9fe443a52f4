#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "common/files.h"
#include "exporters/node/basic_auth.h"
#include "exporters/node/metrics_page.h"
#include "exporters/node/targets.h"
#include "exporters/node/web_config.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::exporter {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The example of Prometheus' documentation: the password is "test".
constexpr const char* kHashOfTest = "$2b$12$hNf2lSsxfm0.i4a.1kVpSOVyBCfIB51VRjgBUyv6kdnyTlgWj81Ay";

class WebConfigTest : public ::testing::Test {
 protected:
  WebConfig read(const std::string& text) const {
    write_file_atomically(folder_ / "web.yml", text);
    return read_web_config(folder_ / "web.yml");
  }
  lockstep::testing::TemporaryFolder folder_;
};

TEST_F(WebConfigTest, ReadsTheFormatThatExportersShare) {
  write_file_atomically(folder_ / "node.crt", "certificate");
  write_file_atomically(folder_ / "node.key", "key");
  const WebConfig config =
      read("tls_server_config:\n  cert_file: node.crt\n  key_file: " + folder_.path().string() +
           "/node.key\n  min_version: TLS13\nbasic_auth_users:\n  prometheus: " + kHashOfTest + "\n");
  EXPECT_EQ(config.certificate, "certificate");
  EXPECT_EQ(config.key, "key");
  EXPECT_TRUE(config.only_tls13);
  EXPECT_EQ(config.users, (std::map<std::string, std::string>{{"prometheus", kHashOfTest}}));
  EXPECT_TRUE(read("# nothing yet\n").users.empty());
}

TEST_F(WebConfigTest, RefusesByLineWhatItDoesNotKnow) {
  const auto says = [&](const std::string& text, const std::string& words) {
    EXPECT_THAT([&] { read(text); }, ThrowsMessage<Error>(HasSubstr(words))) << text;
  };
  says("tls_server_config:\n  client_ca_file: ca.pem\n",
       "web.yml: line 2: 'client_ca_file' is not supported");
  says("tls_server_config:\n  min_version: TLS10\n", "'min_version: TLS10' is not supported");
  says("tls_server_config:\n  cert_file: none.pem\n", "none.pem");
  says("tls_server_config: {}\n", "needs cert_file and key_file");
  says("http_server_config: {http2: true}\n", "'http_server_config' is not supported");
  says("basic_auth_users:\n  alice: secret\n", "line 2: the password of 'alice' is not a bcrypt hash");
  says("basic_auth_users: [alice]\n", "line 1");
  says("a: [\n", "web.yml: ");
  EXPECT_THAT([&] { read_web_config(folder_ / "none.yml"); }, ThrowsMessage<Error>(HasSubstr("none.yml")));
}

TEST(BasicAuth, OnlyTheRightPasswordIsAcceptedAndRememberedForLater) {
  BasicAuth auth(std::map<std::string, std::string>{{"prometheus", kHashOfTest}});
  const auto now = BasicAuth::Clock::now();
  EXPECT_EQ(auth.check("prometheus", "wrong", "a", now), Verdict::refused);
  EXPECT_EQ(auth.check("prometheus", "test", "a", now), Verdict::too_many);  // a hash a second
  EXPECT_EQ(auth.check("nobody", "test", "a", now + seconds(1)), Verdict::refused);
  EXPECT_EQ(auth.check("prometheus", "test", "a", now + seconds(2)), Verdict::accepted);
  EXPECT_EQ(auth.check("prometheus", "", "a", now + seconds(3)), Verdict::refused);
  EXPECT_EQ(auth.check("prometheus", "test", "a", now + seconds(3)), Verdict::accepted);  // without a hash
}

TEST(BasicAuth, AGuesserDoesNotKeepOthersOutAndManyAreLimitedTogether) {
  BasicAuth auth(std::map<std::string, std::string>{{"prometheus", kHashOfTest}});
  const auto now = BasicAuth::Clock::now();
  EXPECT_EQ(auth.check("prometheus", "wrong", "guesser", now), Verdict::refused);
  EXPECT_EQ(auth.check("prometheus", "wrong", "guesser", now), Verdict::too_many);
  EXPECT_EQ(auth.check("prometheus", "test", "head", now), Verdict::accepted);
  EXPECT_EQ(auth.check("prometheus", "wrong", "third", now), Verdict::refused);
  EXPECT_EQ(auth.check("prometheus", "wrong", "fourth", now), Verdict::refused);
  EXPECT_EQ(auth.check("prometheus", "wrong", "fifth", now), Verdict::too_many);
  EXPECT_EQ(auth.check("prometheus", "wrong", "fifth", now + seconds(1)), Verdict::refused);
}

TEST(BasicAuth, IsRequiredWithUsersAndRefusesANameThatDoesNotExist) {
  BasicAuth auth(std::map<std::string, std::string>{{"prometheus", kHashOfTest}});
  EXPECT_TRUE(auth.required());
  EXPECT_FALSE(BasicAuth(std::map<std::string, std::string>()).required());
  EXPECT_EQ(auth.check("", "", "a", BasicAuth::Clock::now()), Verdict::refused);
}

TEST(Targets, AreTheNodesThatExistEachOnce) {
  EXPECT_EQ(
      targets_of("n1 idle\nn2 allocated\nn2 allocated\nc1 idle~\nc2 down*\nc3 powered_down\nc4 future\n",
                 9753),
      R"([{"targets":["c2:9753","n1:9753","n2:9753"]}])");
  EXPECT_EQ(targets_of("", 9753), R"([{"targets":[]}])");
}

TEST(MetricsPage, LabelsMayBeAnyText) {
  MetricsPage page;
  page.family("empty", "gauge", "Nothing.");
  page.family("a_bytes", "gauge", "Something.");
  page.sample(Labels().with("job", "7").with("name", "a\"b\\c\nd"), std::uint64_t{18446744073709551615U});
  page.sample({}, 0.25);
  EXPECT_EQ(page.take(),
            "# HELP a_bytes Something.\n# TYPE a_bytes gauge\n"
            "a_bytes{job=\"7\",name=\"a\\\"b\\\\c\\nd\"} 18446744073709551615\na_bytes 0.25\n");
}

}  // namespace
}  // namespace lockstep::exporter
