#include <crypt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "common/error.h"
#include "common/files.h"
#include "exporters/node/slow_services.h"
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
  write_file_atomically(folder_ / "ca.pem", "authorities");
  const WebConfig config = read(
      "tls_server_config:\n  cert_file: node.crt\n  key_file: " + folder_.path().string() +
      "/node.key\n  min_version: TLS13\n  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\nbasic_auth_users:\n  prometheus: " +
      kHashOfTest + "\n");
  EXPECT_EQ(config.certificate, "certificate");
  EXPECT_EQ(config.key, "key");
  EXPECT_EQ(config.client_authorities, "authorities");
  EXPECT_TRUE(config.only_tls13);
  EXPECT_EQ(config.users, (std::map<std::string, std::string>{{"prometheus", kHashOfTest}}));
  EXPECT_TRUE(read("# nothing yet\n").users.empty());
}

TEST_F(WebConfigTest, RefusesByLineWhatItDoesNotKnow) {
  const auto says = [&](const std::string& text, const std::string& words) {
    EXPECT_THAT([&] { read(text); }, ThrowsMessage<Error>(HasSubstr(words))) << text;
  };
  write_file_atomically(folder_ / "ca.pem", "authorities");
  says("tls_server_config:\n  client_auth_type: VerifyClientCertIfGiven\n",
       "'client_auth_type: VerifyClientCertIfGiven' is not supported");
  says("tls_server_config:\n  client_ca_file: ca.pem\n",
       "client_auth_type: RequireAndVerifyClientCert and client_ca_file together");
  says("tls_server_config:\n  min_version: TLS10\n", "'min_version: TLS10' is not supported");
  says("tls_server_config:\n  cert_file: none.pem\n", "none.pem");
  says("tls_server_config: {}\n", "needs cert_file and key_file");
  says("http_server_config: {http2: true}\n", "'http_server_config' is not supported");
  says("basic_auth_users:\n  alice: secret\n", "line 2: the password of 'alice' is not a bcrypt hash");
  says("basic_auth_users: [alice]\n", "line 1");
  says("a: [\n", "web.yml: ");
  EXPECT_THAT([&] { read_web_config(folder_ / "none.yml"); }, ThrowsMessage<Error>(HasSubstr("none.yml")));
}

class BasicAuthTest : public ::testing::Test {
 protected:
  Access verdict(const std::string& password, const std::string& client, int second,
                 const std::string& name = "prometheus") {
    return later(password, client, second, name).get();
  }

  std::future<Access> later(const std::string& password, const std::string& client, int second,
                            const std::string& name = "prometheus") {
    const auto now = start_ + seconds(second);
    const auto promise = std::make_shared<std::promise<Access>>();
    if (const auto known = auth_.check(name, password, client, now)) {
      promise->set_value(*known);
    } else {
      auth_.hash(name, password, client, now, [promise](Access verdict) { promise->set_value(verdict); });
    }
    return promise->get_future();
  }

  BasicAuth::Clock::time_point start_ = BasicAuth::Clock::now();
  BasicAuth auth_{
      std::map<std::string, std::string>{{"prometheus", ::crypt("test", "$2b$04$abcdefghijklmnopqrstuu")}}};
};

TEST_F(BasicAuthTest, OnlyTheRightPasswordIsAcceptedAndRememberedForLater) {
  EXPECT_EQ(verdict("wrong", "a", 0), Access::refused);
  EXPECT_EQ(verdict("test", "a", 0), Access::too_many);  // a hash a second
  EXPECT_EQ(verdict("test", "a", 1, "nobody"), Access::refused);
  EXPECT_EQ(verdict("test", "a", 2), Access::accepted);
  EXPECT_EQ(verdict("", "a", 3), Access::refused);
  EXPECT_EQ(verdict("test", "a", 3), Access::accepted);  // without a hash
}

TEST_F(BasicAuthTest, GuessersDelayOthersAndNeverLockThemOut) {
  std::vector<std::future<Access>> guesses;
  for (const char* guesser : {"b", "c", "d", "e", "f"}) guesses.push_back(later("wrong", guesser, 0));
  EXPECT_EQ(verdict("wrong", "f", 0), Access::too_many);  // one at a time
  EXPECT_EQ(verdict("test", "head", 0), Access::accepted);
  for (auto& guess : guesses) EXPECT_EQ(guess.get(), Access::refused);
}

TEST_F(BasicAuthTest, ItsEndAnswersAllThatWait) {
  auto first = later("wrong", "a", 0);
  auto second = later("wrong", "b", 0);
  auto third = later("wrong", "c", 0);
  auth_.stop();
  EXPECT_EQ(third.get(), Access::too_many);
  EXPECT_EQ(verdict("test", "d", 0), Access::too_many);
}

TEST_F(BasicAuthTest, IsRequiredWithUsersAndRefusesANameThatDoesNotExist) {
  EXPECT_TRUE(auth_.required());
  EXPECT_FALSE(BasicAuth(std::map<std::string, std::string>()).required());
  EXPECT_EQ(verdict("", "a", 0, ""), Access::refused);
}

// A directory of users or slurmctld may hang.
TEST(BackgroundAnswers, AServiceThatHangsDelaysOneCallBrieflyAndKeepsItsLastAnswer) {
  std::promise<void> hangs;
  std::atomic<int> questions{0};
  const auto wait = [ended = hangs.get_future().share()] { ended.wait(); };
  BackgroundAnswers answers(
      [&questions, wait](const std::string& key) -> std::optional<std::string> {
        if (++questions > 1) wait();
        return key + "!";
      },
      seconds(60));
  const auto start = BackgroundAnswers::Clock::now();
  EXPECT_EQ(answers.get("a", start), "a!");
  EXPECT_EQ(answers.get("a", start + seconds(120)), "a!") << "it asks again, and does not wait";
  const auto begin = BackgroundAnswers::Clock::now();
  for (int key = 0; key < 100; ++key) EXPECT_EQ(answers.get(std::to_string(key), start), std::nullopt);
  EXPECT_LT(BackgroundAnswers::Clock::now() - begin, seconds(5));
  hangs.set_value();
}

TEST(BackgroundAnswers, AQuestionWithoutAnAnswerKeepsTheOneBefore) {
  std::atomic<int> questions{0};
  BackgroundAnswers answers(
      [&](const std::string&) -> std::optional<std::string> {
        return ++questions == 1 ? std::optional<std::string>("good") : std::nullopt;
      },
      seconds(60));
  const auto start = BackgroundAnswers::Clock::now();
  EXPECT_EQ(answers.get("", start), "good");
  EXPECT_EQ(answers.get("", start + seconds(120)), "good");
  const auto deadline = start + seconds(20);
  while (questions < 2 && BackgroundAnswers::Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(answers.get("", start), "good");
}

TEST(Targets, AreTheNodesThatExistEachOnce) {
  EXPECT_EQ(
      targets_of("n1 idle\nn2 allocated\nn2 allocated\nc1 idle~\nc2 down*\nc3 powered_down\nc4 future\n",
                 9753),
      R"([{"targets":["c2:9753","n1:9753","n2:9753"]}])");
  EXPECT_EQ(targets_of("", 9753), R"([{"targets":[]}])");
}

}  // namespace
}  // namespace lockstep::exporter
