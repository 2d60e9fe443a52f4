#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "common/crc32c.h"
#include "staging/pack/formats/format_check.h"
#include "staging/pack/formats/number_keys.h"
#include "tests/unit/staging/pack/formats/format_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;

class FormatContents : public staging_test::StagingTest {
 protected:
  Format format_of(const fs::path& name) const { return contents_of(folder_ / name).format; }
};

TEST(Crc32c, GivesTheKnownChecksumsAtOnceAndInPieces) {
  const std::string_view digits = "123456789";
  const auto bytes = std::as_bytes(std::span(digits));
  EXPECT_EQ(crc32c(bytes), 0xe3069283U);
  EXPECT_EQ(crc32c(bytes.subspan(4), crc32c(bytes.first(4))), 0xe3069283U);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32)), 0x8a9136aaU);  // RFC 3720, B.4
}

TEST(Crc32c, IsTheSameWithoutTheProcessorsInstruction) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(crc32c_by_table(bytes), crc32c(bytes)) << i;
    EXPECT_EQ(crc32c_by_table(bytes, 0x12345678U), crc32c(bytes, 0x12345678U)) << i;
    bytes.push_back(static_cast<std::byte>(i * 37 + 1));
  }
}

TEST(NumberKeys, AreNumbersWithAsManyDigitsAsTheLastOne) {
  const NumberKeys keys(3001);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (std::size_t i = 0; i < 3001; ++i) wrong += keys[i] != fmt::format("{:04}", i);
      });
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(NumberKeys(1)[0], "0");
  EXPECT_EQ(NumberKeys(10)[9], "9");
  EXPECT_EQ(NumberKeys(11)[9], "09");
}

TEST_F(FormatContents, APackConsistsOfItsIndexAndTheShardsInIt) {
  const fs::path pack = make_large_pack("p", 40);
  write("p/notes.txt", "not of the pack");
  const Contents contents = contents_of(pack);
  EXPECT_EQ(contents.format, Format::tar);
  EXPECT_EQ(contents.folder, fs::canonical(pack));
  EXPECT_THAT(contents.files,
              ElementsAre("index.lockstep", "shard-000000.tar", "shard-000001.tar", "shard-000002.tar"));
  EXPECT_FALSE(contents.one_file);
  EXPECT_EQ(contents_of(pack / "index.lockstep").files, contents.files);
  check_complete(pack, contents);
}

TEST_F(FormatContents, OneShardOfAPackComesWithTheIndex) {
  const Contents contents = contents_of(make_large_pack("p", 40) / "shard-000001.tar");
  EXPECT_EQ(contents.format, Format::tar);
  EXPECT_TRUE(contents.one_file);
  EXPECT_THAT(contents.files, ElementsAre("index.lockstep", "shard-000001.tar"));
}

TEST_F(FormatContents, AShortenedShardIsNotComplete) {
  const fs::path pack = make_large_pack("p", 40);
  const Contents contents = contents_of(pack);
  fs::resize_file(pack / "shard-000001.tar", 1000);
  EXPECT_THAT([&] { check_complete(pack, contents); },
              ThrowsErrorWith("shard-000001.tar", "truncated to 1000"));
}

TEST_F(FormatContents, FileNamesTellTheFormatOfAFolder) {
  write("h/train.h5", "");
  write("h/readme.txt", "");
  write("n/a.npy", "");
  write("l/db/data.mdb", "");
  write("l/db/lock.mdb", "");
  write("r/a.rec", "");
  write("r/a.idx", "0\t0\n");
  write("t/a.tfrecord-00000-of-00002", "");
  write("m/index.json", "");
  write("m/shard.00000.mds", "");
  write("x/pictures/a.jpg", "");
  write("several/a.rec", "");
  write("several/b.h5", "");
  EXPECT_EQ(format_of("h"), Format::hdf5);
  EXPECT_EQ(format_of("n"), Format::plain);
  EXPECT_EQ(format_of("l"), Format::lmdb);
  EXPECT_EQ(format_of("r"), Format::recordio);
  EXPECT_EQ(format_of("t"), Format::tfrecord);
  EXPECT_EQ(format_of("m"), Format::plain);
  EXPECT_EQ(format_of("x"), Format::plain);
  EXPECT_EQ(format_of("several"), Format::plain);
  EXPECT_THAT(contents_of(folder_ / "l").files, ElementsAre("db/data.mdb"));
  EXPECT_THAT(contents_of(folder_ / "h").files, ElementsAre("readme.txt", "train.h5"));
  EXPECT_THAT(contents_of(folder_ / "m").files, ElementsAre("index.json", "shard.00000.mds"));
  EXPECT_EQ(name_of(Format::plain), "plain");
  EXPECT_EQ(name_of(Format::tfrecord), "tfrecord");
}

TEST_F(FormatContents, FilesWhoseNamesTellNothingAreRecognisedByTheirFirstBytes) {
  write("t/train-00000-of-00002", tfrecord({"one"}));
  write("t/train-00001-of-00002", tfrecord({"two"}));
  write("u/part-00000-of-00002", "text, that is");
  write("a", tfrecord({"one"}));
  write("b", "\x89HDF\r\n\x1a\n");
  EXPECT_EQ(format_of("t"), Format::tfrecord);
  EXPECT_EQ(format_of("u"), Format::plain);
  EXPECT_EQ(format_of("a"), Format::tfrecord);
  EXPECT_EQ(format_of("b"), Format::hdf5);
}

TEST_F(FormatContents, AMegatronPairIsFoundByEitherFileByItsPrefixAndByItsFolder) {
  write("m/text_document.idx", megatron_index(8, {3, 2}));
  write("m/text_document.bin", std::string(10, 'x'));
  for (const char* name : {"m/text_document.idx", "m/text_document.bin", "m/text_document", "m", "m/"}) {
    const Contents contents = contents_of(folder_ / name);
    EXPECT_EQ(contents.format, Format::megatron) << name;
    EXPECT_THAT(contents.files, ElementsAre("text_document.bin", "text_document.idx")) << name;
    check_complete(contents.folder, contents);
  }
  EXPECT_TRUE(contents_of(folder_ / "m/text_document").one_file);
}

TEST_F(FormatContents, AMegatronIndexWithoutItsDataIsRefusedByName) {
  write("m/a.idx", megatron_index(8, {3}));
  EXPECT_THAT([&] { contents_of(folder_ / "m"); },
              ThrowsErrorWith((folder_ / "m/a.bin").string(), "is missing"));
  EXPECT_THAT([&] { contents_of(folder_ / "m/a.idx"); },
              ThrowsErrorWith((folder_ / "m/a.bin").string(), "is missing"));
}

TEST_F(FormatContents, MegatronDataShorterThanTheirIndexSaysAreRefusedWithTheFirstLostSequence) {
  write("m/a.idx", megatron_index(4, {3, 2, 4}));
  write("m/a.bin", std::string(21, 'x'));
  const Contents contents = contents_of(folder_ / "m");
  EXPECT_THAT([&] { check_complete(folder_ / "m", contents); },
              ThrowsErrorWith((folder_ / "m/a.bin").string(), "a.idx", "truncated to 21 bytes, 36 expected",
                              "the first lost sequence is 2 at offset 20"));
  write("m/a.bin", std::string(37, 'x'));
  EXPECT_THAT([&] { check_complete(folder_ / "m", contents); }, ThrowsErrorWith("37 bytes, 36 expected"));
}

TEST_F(FormatContents, ASubfolderThatCannotBeListedIsNamed) {
  write("d/open/a", "x");
  write("d/secret/b", "x");
  fs::permissions(folder_, fs::perms(0755));
  fs::permissions(folder_ / "d/secret", fs::perms::none);
  EXPECT_EQ(staging_test::in_child([&] {
              if (::geteuid() == 0 && ::seteuid(65534) != 0) fail_errno("seteuid");
              EXPECT_THAT([&] { contents_of(folder_ / "d"); },
                          ThrowsErrorWith((folder_ / "d/secret").string() + ": Permission denied"));
              if (testing::Test::HasFailure()) fail("see above");
            }),
            0);
  fs::permissions(folder_ / "d/secret", fs::perms::owner_all);
}

TEST_F(FormatContents, LinksThatLeadOutDevicesAndMissingOrEmptySourcesAreRefusedByName) {
  write("l/a", "x");
  fs::create_symlink("a", folder_ / "l/link");
  EXPECT_THAT(contents_of(folder_ / "l").files, ElementsAre("a", "link"));
  write("outside", "x");
  fs::create_symlink("../outside", folder_ / "l/out");
  EXPECT_THAT([&] { contents_of(folder_ / "l"); },
              ThrowsErrorWith((folder_ / "l/out").string(), "symbolic link out of the folder"));
  EXPECT_THAT(readable_contents_of(folder_ / "l").files, ElementsAre("a", "link", "out"));
  write("f/a", "x");
  ASSERT_EQ(::mkfifo((folder_ / "f/pipe").c_str(), 0600), 0);
  EXPECT_THAT([&] { contents_of(folder_ / "f"); }, ThrowsErrorWith((folder_ / "f/pipe").string(), "neither"));
  fs::create_directory(folder_ / "empty");
  EXPECT_THAT([&] { contents_of(folder_ / "empty"); },
              ThrowsErrorWith((folder_ / "empty").string(), "is empty"));
  EXPECT_THAT([&] { contents_of(folder_ / "none"); },
              ThrowsErrorWith((folder_ / "none").string(), "No such file"));
}

TEST_F(FormatContents, ALinkToAFolderIsResolvedAndALinkToAFileKeepsItsName) {
  write("real/a.h5", "");
  fs::create_directory_symlink("real", folder_ / "linked");
  EXPECT_EQ(contents_of(folder_ / "linked").folder, fs::canonical(folder_ / "real"));
  write("blobs/0123", "");
  fs::create_symlink("blobs/0123", folder_ / "b.h5");
  EXPECT_THAT(contents_of(folder_ / "b.h5").files, ElementsAre("b.h5"));
}

}  // namespace
}  // namespace lockstep::pack
