#include "staging/pack/write/convert.h"

#include <nlohmann/json.hpp>

#include "common/process.h"
#include "staging/pack/formats/megatron_writer.h"
#include "staging/pack/index.h"
#include "staging/pack/member_name.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/create.h"
#include "staging/pack/write/file_list.h"
#include "staging/pack/write/packer.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;

template <typename T>
std::string bytes_of_numbers(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

TEST(MemberKeys, ValidNamesAreKeptAndOtherKeysGetDifferentValidNames) {
  for (const char* name : {"a", "d/e", "0007", "d.e/f", "a/"}) EXPECT_EQ(member_key(name), name);
  EXPECT_EQ(member_key("img.001"), "img%2E001");
  EXPECT_EQ(member_key("img%2E001"), "img%252E001");
  EXPECT_EQ(member_key("/etc"), "%2Fetc");
  EXPECT_EQ(member_key(std::string("a\0b", 3)), "a%00b");
  EXPECT_EQ(member_key(""), "%");
  for (const char* bad :
       {"..", "../a", "a//b", "a//", "/", ".", "a.", "a.b/", ".a", "a/../b", "\xff\xfe.x"}) {
    const std::string key = member_key(bad);
    EXPECT_EQ(unsafe_member_name(key), "") << bad;
    EXPECT_EQ(split_member_name(key + ".x").key, key) << bad;
  }
}

class PackConvert : public staging_test::StagingTest {
 protected:
  ConvertOptions options(const fs::path& source, const fs::path& out,
                         ConvertOptions::To to = ConvertOptions::To::tar) const {
    ConvertOptions options;
    options.source = folder_ / source;
    options.out = folder_ / out;
    options.to = to;
    return options;
  }
  /// Three sequences of 32-bit tokens.
  void write_megatron(TokenType type = TokenType::i32, std::int64_t special = 7) const {
    MegatronWriter writer(folder_ / "m", type);
    for (const std::vector<std::int32_t>& sequence :
         {std::vector<std::int32_t>{1, 2, 3}, {static_cast<std::int32_t>(special)}, {70000, 5}}) {
      writer.add_sequence(std::as_bytes(std::span(sequence)));
      writer.end_document();
    }
    writer.finish();
  }
};

TEST_F(PackConvert, ShardsAgainWithTheSameSamplesAndFingerprint) {
  const fs::path pack = make_large_pack("p", 40);
  ConvertOptions larger = options("p", "q");
  larger.shard_bytes = 1 << 20;
  const ConvertResult result = convert(larger);
  EXPECT_EQ(result.samples, 40U);
  EXPECT_EQ(result.files, 1U);
  const auto reader = open(folder_ / "q");
  reader->verify();
  EXPECT_EQ(reader->fingerprint(), open(pack)->fingerprint());
  ConvertOptions back = options("q", "r");
  back.shard_bytes = 64 << 10;
  convert(back);
  EXPECT_EQ(content_of(folder_ / "r"), content_of(pack)) << "the bytes that create wrote";
}

TEST_F(PackConvert, KeepsPartsAndNamesWithUnusualDots) {
  const fs::path pack =
      make_pack("p", {{"a.json", "{}"}, {"a.txt", "text"}, {"b.", "dot"}, {".c", "hidden"}, {"d/e", ""}});
  convert(options("p/shard-000000.tar", "q"));
  EXPECT_EQ(open(folder_ / "q")->fingerprint(), open(pack)->fingerprint());
}

TEST_F(PackConvert, ADamagedSampleIsNamedAndNothingIsLeft) {
  const fs::path pack = make_large_pack("p", 40);
  const Part part = open(pack)->parts(33)[0];
  staging_test::flip_byte(pack / part.shard, part.offset + 77);
  EXPECT_THAT([&] { convert(options("p", "q")); },
              ThrowsErrorWith("sample 33 (0033)", part.shard, std::to_string(part.offset)));
  EXPECT_THAT(names_here(), ElementsAre("p", "p.src"));
}

TEST_F(PackConvert, TokensAreConvertedToMegatronAndBack) {
  make_pack("p",
            {{"a.tok", bytes_of_numbers<std::uint16_t>({1, 2, 65535})},
             {"b.tok", bytes_of_numbers<std::uint16_t>({9})}},
            1 << 20, 2);
  const ConvertResult result = convert(options("p", "m", ConvertOptions::To::megatron));
  EXPECT_EQ(result.samples, 2U);
  const auto reader = open(folder_ / "m.idx");
  ASSERT_EQ(reader->size(), 2U);
  EXPECT_EQ(reader->token_type(), TokenType::u16);
  EXPECT_EQ(read_sample(*reader, 0), bytes_of_numbers<std::uint16_t>({1, 2, 65535}));
  convert(options("m.idx", "back"));
  const auto back = open(folder_ / "back");
  back->verify();
  EXPECT_EQ(back->token_bytes(), 2);
  EXPECT_EQ(read_sample(*back, 1), bytes_of_numbers<std::uint16_t>({9}));
  EXPECT_EQ(back->parts(1)[0].kind, "tok");
}

TEST_F(PackConvert, SignedTokensBecomeUnsigned) {
  write_megatron();
  convert(options("m.idx", "q"));
  const auto reader = open(folder_ / "q");
  EXPECT_EQ(reader->token_bytes(), 4);
  EXPECT_EQ(read_sample(*reader, 2), bytes_of_numbers<std::uint32_t>({70000, 5}));
}

TEST_F(PackConvert, ANegativeTokenIsNamed) {
  write_megatron(TokenType::i32, -1);
  EXPECT_THAT([&] { convert(options("m.idx", "q")); }, ThrowsErrorWith("sample 1", "token 0 is -1"));
}

TEST_F(PackConvert, SamplesWithoutTokensAreRefusedForMegatron) {
  make_pack("p", {{"a", "x"}});
  EXPECT_THAT([&] { convert(options("p", "m", ConvertOptions::To::megatron)); },
              ThrowsErrorWith("its samples are not marked as tokens"));
  EXPECT_THAT(names_here(), ElementsAre("p", "p.src"));
}

TEST_F(PackConvert, KilledOrFailedAtAnySystemCallItPublishesNothingAndTheNextCallWorks) {
  make_large_pack("p", 12);
  convert(options("p", "whole"));
  const auto whole = content_of(folder_ / "whole");
  const EveryCall every{
      .work =
          [&](FileSystem& system) {
            ConvertOptions doomed = options("p", "q");
            doomed.system = &system;
            convert(doomed);
          },
      .check =
          [&] {
            if (!fs::exists(folder_ / "q")) convert(options("p", "q"));
            EXPECT_EQ(content_of(folder_ / "q"), whole);
            fs::remove_all(folder_ / "q");
          },
      .refused = [](const Error& error) { EXPECT_THAT(error.what(), testing::HasSubstr("No space left")); }};
  EXPECT_GT(kill_at_every_call(every), 10);
  EXPECT_GT(fail_at_every_call(every, ENOSPC), 10);
}

TEST_F(PackConvert, AWrongCopyIsDetected) {
  make_pack("p", {{"a.txt", std::string(3000, 'n')}});
  HookedFileSystem files([](const FileCall& call) {
    if (call.kind != FileCall::Kind::write) return real_call(call);
    std::vector<std::byte> bytes(call.from, call.from + call.size);
    const std::vector<std::byte> pattern(8, std::byte{'n'});
    const auto at = std::search(bytes.begin(), bytes.end(), pattern.begin(), pattern.end());
    if (at != bytes.end()) *at = std::byte{'m'};
    FileCall changed = call;
    changed.from = bytes.data();
    return real_call(changed);
  });
  ConvertOptions broken = options("p", "q");
  broken.system = &files;
  EXPECT_THAT([&] { convert(broken); }, ThrowsErrorWith("shard-000000.tar, sample 0"));
  EXPECT_THAT(names_here(), ElementsAre("p", "p.src"));
}

TEST_F(PackConvert, KindsThatCannotBePartsOfFileNamesAreRefused) {
  FileSystem& system = FileSystem::real();
  fs::create_directory(folder_ / "q");
  Journal journal(folder_ / "journal", "test", system);
  Packer packer({.folder = folder_ / "q", .shard_bytes = 1 << 20}, journal, system);
  packer.begin_sample("a", 0);
  packer.begin_part("x", 0);
  packer.end_part(0);
  for (const char* kind : {"../../../evil", "/evil", "a/b", "x"})
    EXPECT_THAT([&] { packer.begin_part(kind, 0); }, ThrowsErrorWith("sample 'a'", "cannot be a file"))
        << kind;
}

TEST_F(PackConvert, StoppedItLeavesNothing) {
  make_pack("p", {{"a.tok", "12345678"}, {"b.tok", "1234"}}, 1 << 20, 4);
  for (const auto to : {ConvertOptions::To::tar, ConvertOptions::To::megatron}) {
    std::atomic<bool> stop = false;
    ConvertOptions stopped = options("p", "q", to);
    stopped.stop = &stop;
    for (const std::uint64_t after : {0U, 1U, 2U}) {  // 2: while the result is checked
      stop = after == 0;
      stopped.progress = [&](std::uint64_t samples) { stop = samples == after; };
      EXPECT_THROW(convert(stopped), Stopped) << after;
      EXPECT_THAT(names_here(), ElementsAre("p", "p.src"));
    }
  }
}

TEST_F(PackConvert, APackThatCreateCanContinueIsNotRemoved) {
  const fs::path source = make_large_pack("p", 40).parent_path() / "p.src";
  CreateOptions interrupted;
  interrupted.folder = source;
  interrupted.files = files_below(source, {});
  interrupted.out = folder_ / "q";
  interrupted.shard_bytes = 64 << 10;
  std::atomic<bool> stop = false;
  interrupted.stop = &stop;
  interrupted.progress = [&](std::size_t files, std::uint64_t) { stop = files > 30; };
  EXPECT_THROW(create(interrupted), Stopped);
  EXPECT_THAT([&] { convert(options("p", "q")); }, ThrowsErrorWith("interrupted create", ".q.unfinished"));
  interrupted.stop = nullptr;
  EXPECT_GT(create(interrupted).continued_files, 0U);
}

TEST_F(PackConvert, TheToolConvertsAndItsOtherVerbsReadMegatronFiles) {
  write_megatron();
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), LOCKSTEP_PACK);
    return run_process(words);
  };
  const std::string idx = (folder_ / "m.idx").string();
  const auto made = run({"convert", idx, "--out", (folder_ / "q").string(), "--to", "tar", "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.error;
  EXPECT_EQ(nlohmann::json::parse(made.output).at("samples"), 3);
  EXPECT_EQ(run({"verify", idx}).exit_code, 0);
  EXPECT_EQ(run({"index", idx}).exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(run({"stats", idx, "--json"}).output).at("total"), 6);
  const auto shown = nlohmann::json::parse(run({"cat", idx, "--sample", "2", "--json"}).output);
  EXPECT_EQ(shown.at("tokens"), (std::vector<int>{70000, 5}));
  const auto listed = run({"ls", idx});
  EXPECT_EQ(std::count(listed.output.begin(), listed.output.end(), '\n'), 3);
  EXPECT_EQ(run({"convert", idx, "--out", (folder_ / "r").string(), "--to", "zip"}).exit_code, 2);
}

}  // namespace
}  // namespace lockstep::pack
