// Damaged and malicious input: tar files built byte by byte for verify, and files that cannot be packed.

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "common/files.h"
#include "common/process.h"
#include "staging/pack/index.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/create.h"
#include "staging/pack/write/file_list.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using staging_test::in_child;
using staging_test::ThrowsErrorWith;

struct Member {
  std::string name;
  char type = '0';
  std::string size = "00000000004";
  std::string content = "data";
  std::string link = "";
};

std::string padded(std::string content) {
  content.resize((content.size() + 511) / 512 * 512, '\0');
  return content;
}

/// A ustar header and the content after it, valid or not.
std::string bytes_of(const Member& member) {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  put(0, member.name.substr(0, 100));
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, member.size);
  put(136, "00000000000");
  put(148, "        ");
  header[156] = member.type;
  put(157, member.link);
  put(257, std::string("ustar\00000", 8));
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  put(148, fmt::format("{:06o}", sum) + '\0');
  return header + padded(member.content);
}

std::string pax(const std::string& key, const std::string& value, char type = 'x') {
  const std::string rest = " " + key + "=" + value + "\n";
  std::size_t length = rest.size() + 1;
  while (std::to_string(length).size() + rest.size() != length) ++length;
  const std::string record = std::to_string(length) + rest;
  return bytes_of(
      {.name = "pax", .type = type, .size = fmt::format("{:011o}", record.size()), .content = record});
}

class HostileShard : public staging_test::StagingTest {
 protected:
  /// A pack whose index says that `bad` is a sample of four bytes, after `before` other bytes.
  fs::path pack(const std::string& bad, std::size_t before = 0) {
    std::string shard = bytes_of({.name = "good"});
    const std::size_t offset = shard.size() + before + 512;
    shard += bad;
    shard.resize(std::max(shard.size(), offset + 512) + 1024, '\0');
    IndexBuilder builder(0);
    builder.begin_shard("shard-000000.tar");
    for (const auto& [key, at] : {std::pair<const char*, std::size_t>{"good", 512}, {"bad", offset}}) {
      builder.add_sample(key);
      builder.add_part("", at, 4, xxh3_64(std::as_bytes(std::span(shard)).subspan(at, 4)));
    }
    builder.end_shard(shard.size(), digest_of(std::as_bytes(std::span(shard))));
    write("p/shard-000000.tar", shard);
    write("p/index.lockstep", builder.finish());
    return folder_ / "p";
  }
  template <typename... Texts>
  void refused(const std::string& bad, std::size_t before, Texts... texts) {
    EXPECT_THAT([&] { open(pack(bad, before))->verify(); }, ThrowsErrorWith("shard-000000.tar", texts...));
  }
};

TEST_F(HostileShard, AValidShardIsAccepted) {
  open(pack(bytes_of({.name = "bad"})))->verify();
}

TEST_F(HostileShard, LinksDevicesFoldersAndPipesAreRefusedByName) {
  for (const char type : {'1', '2', '3', '4', '5', '6'}) {
    SCOPED_TRACE(type);
    refused(bytes_of({.name = "bad", .type = type, .size = "00000000000", .link = "good"}), 0,
            "member 'bad' at offset 1536 is not a regular file");
  }
}

TEST_F(HostileShard, MembersThatTheIndexDoesNotHaveAreNamedWithTheirOffset) {
  refused(bytes_of({.name = "../bad"}), 0, "member '../bad' at offset 1536 leaves its folder");
  refused(bytes_of({.name = "/bad"}), 0, "member '/bad' at offset 1536 is an absolute path");
  refused(bytes_of({.name = "other"}), 0, "sample 1 (bad), offset 1536: the shard has 'other'");
  refused(bytes_of({.name = "bad"}) + bytes_of({.name = "more"}), 0,
          "member 'more' at offset 2560 is not in the index");
}

TEST_F(HostileShard, NamesThatLeaveTheFolderAreRefusedInEveryEncoding) {
  const std::string plain = bytes_of({.name = "bad"});
  for (const std::string name : {"../bad", "/bad", "a/../../bad", "/etc/passwd"}) {
    SCOPED_TRACE(name);
    refused(bytes_of({.name = name}), 0, name);
    refused(pax("path", name) + plain, 1024, name);
    const std::string text = name + '\0';
    refused(bytes_of({.name = "././@LongLink",
                      .type = 'L',
                      .size = fmt::format("{:011o}", text.size()),
                      .content = text}) +
                plain,
            1024, name);
  }
}

TEST_F(HostileShard, HeadersWithTwoSizesAreRefused) {
  refused(pax("size", "3") + bytes_of({.name = "bad"}), 1024, "bad");
  refused(pax("size", "99999999999999") + bytes_of({.name = "bad"}), 1024);
  refused(pax("size", "-1") + bytes_of({.name = "bad"}), 1024);
}

TEST_F(HostileShard, TheNameInAGlobalHeaderCounts) {
  refused(pax("path", "../evil", 'g') + bytes_of({.name = "bad"}), 1024, "member '../evil'",
          "leaves its folder");
  open(pack(pax("path", "bad", 'g') + bytes_of({.name = "other"}), 1024))->verify();
}

TEST_F(HostileShard, SparseFilesAreRefused) {
  refused(pax("GNU.sparse.map", "0,2,6,2") + bytes_of({.name = "bad"}), 1024, "bad");
}

TEST_F(HostileShard, ImpossibleSizesAreRefused) {
  for (const std::string size : {"77777777777", "00000000005", "-0000000004", "zzzzzzzzzzz"}) {
    SCOPED_TRACE(size);
    refused(bytes_of({.name = "bad", .size = size}), 0);
  }
  std::string negative(11, '\377');
  refused(bytes_of({.name = "bad", .size = negative}), 0);
}

TEST_F(HostileShard, DamagedHeadersAreRefused) {
  std::string wrong = bytes_of({.name = "bad"});
  wrong[1] = 'A';  // the checksum no longer matches
  refused(wrong, 0);
  refused(std::string(1024, '\0'), 0, "sample 1 (bad), offset 1536: the shard ends before this sample");
  refused(std::string(1024, '\377'), 0);
}

class BadFiles : public staging_test::StagingTest {
 protected:
  CreateOptions options(const std::vector<std::string>& files, const fs::path& out = "p") const {
    CreateOptions options;
    options.folder = folder_ / "s";
    options.files = files;
    options.out = folder_ / out;
    return options;
  }
  CreateOptions options() const { return options(files_below(folder_ / "s", {})); }
  void pack_all() const { create(options()); }
  void pack_listed(const std::vector<std::string>& files) const { create(options(files)); }

  /// Runs `work` in a process of the user nobody, and expects it to succeed without a failed expectation.
  void as_nobody(const std::function<void()>& work) const {
    fs::permissions(folder_, fs::perms(0755));
    EXPECT_EQ(in_child([&] {
                if (::geteuid() == 0 && ::setuid(65534) != 0) fail_errno("setuid");
                work();
                if (HasFailure()) fail("another message");
              }),
              0);
  }
};

TEST_F(BadFiles, PipesAndSocketsAreRefusedByName) {
  write("s/a", "x");
  ASSERT_EQ(::mkfifo((folder_ / "s/pipe").c_str(), 0600), 0);
  EXPECT_THAT([&] { pack_all(); }, ThrowsErrorWith("s/pipe is not a regular file"));
  EXPECT_THAT([&] { pack_listed({"pipe"}); }, ThrowsErrorWith("s/pipe is not a regular file"));
  fs::remove(folder_ / "s/pipe");
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, (folder_ / "s/socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT([&] { pack_all(); }, ThrowsErrorWith("s/socket is not a regular file"));
}

TEST_F(BadFiles, ListedLinksFoldersAndMissingFilesAreRefusedByName) {
  write("s/a", "x");
  write("s/d/b", "x");
  fs::create_symlink("a", folder_ / "s/link");
  EXPECT_THAT([&] { pack_listed({"a", "link"}); }, ThrowsErrorWith("s/link is a symbolic link"));
  EXPECT_THAT([&] { pack_listed({"a", "d"}); }, ThrowsErrorWith("s/d is not a regular file"));
  EXPECT_THAT([&] { pack_listed({"a", "gone"}); }, ThrowsErrorWith("s/gone", "No such file"));
  EXPECT_THAT([&] { pack_listed({"a", "gone/b"}); }, ThrowsErrorWith("s/gone/b", "No such file"));
  EXPECT_THAT([&] { pack_listed({std::string(300, 'n')}); }, ThrowsErrorWith("nnn", "File name too long"));
  EXPECT_THAT(names_here(), testing::ElementsAre("s"));
}

TEST_F(BadFiles, AFileThatVanishesWhileOthersArePackedIsNamed) {
  for (int i = 0; i < 600; ++i) write(fmt::format("s/{:03}", i), "x");  // more than the loader reads ahead
  CreateOptions removing = options();
  removing.progress = [&](std::size_t files, std::uint64_t) {
    if (files == 1) fs::remove(folder_ / "s/599");
  };
  EXPECT_THAT([&] { create(removing); }, ThrowsErrorWith("s/599", "No such file"));
}

TEST_F(BadFiles, UnreadableFilesAndFoldersAreNamed) {
  write("s/a", "x");
  write("s/closed/b", "x");
  fs::create_directory(folder_ / "out");
  fs::permissions(folder_ / "out", fs::perms::all);
  const auto expect_refused = [&](const char* name) {
    as_nobody([&] {
      EXPECT_THAT([&] { create(options(files_below(folder_ / "s", {}), "out/p")); },
                  ThrowsErrorWith(name, "Permission denied"));
    });
  };
  fs::permissions(folder_ / "s/closed", fs::perms::none);
  expect_refused("s/closed");
  fs::permissions(folder_ / "s/closed", fs::perms::all);
  fs::permissions(folder_ / "s/a", fs::perms::none);
  expect_refused("s/a");
}

TEST_F(BadFiles, ATargetThatCannotBeWrittenIsNamed) {
  write("s/a", "x");
  fs::create_directory(folder_ / "closed");
  fs::permissions(folder_ / "closed", fs::perms(0555));
  as_nobody([&] {
    EXPECT_THAT([&] { create(options({"a"}, "closed/p")); },
                ThrowsErrorWith("closed/.p.unfinished: Permission denied"));
  });
}

TEST_F(BadFiles, AFolderThatCannotBeEnteredIsNamed) {
  write("s/a", "x");
  fs::create_directory(folder_ / "closed");
  fs::permissions(folder_ / "closed", fs::perms::none);
  as_nobody([&] {
    EXPECT_THAT([&] { files_below(folder_ / "closed/s", {}); },
                ThrowsErrorWith("closed/s", "Permission denied"));
    EXPECT_THAT([&] { new_folder(folder_ / "closed/out/p"); },
                ThrowsErrorWith("closed/out", "Permission denied"));
  });
}

TEST_F(BadFiles, NamesOfAnyBytesAndLengthAreKept) {
  const std::string deep = std::string(200, 'd') + "/" + std::string(200, 'e') + "/" + std::string(200, 'f');
  std::map<std::string, std::string> files = {{"\xff\xfe.bin", "not UTF-8"}, {"new\nline.txt", "a line"},
                                              {deep + ".txt", "deep"},       {"sp ace.txt", "space"},
                                              {std::string(99, 'x'), "99"},  {std::string(100, 'y'), "100"},
                                              {std::string(101, 'z'), "101"}};
  const fs::path made = make_pack("p", files);
  const auto reader = open(made);
  reader->verify();
  EXPECT_EQ(reader->size(), files.size());
  fs::create_directory(folder_ / "unpacked");
  const auto tar = run_process(
      {"tar", "-xpf", (made / "shard-000000.tar").string(), "-C", (folder_ / "unpacked").string()});
  ASSERT_EQ(tar.exit_code, 0) << tar.error;
  EXPECT_EQ(tar.error, "");
  EXPECT_EQ(staging_test::content_of(folder_ / "unpacked"), files);
  struct stat status {};
  ASSERT_EQ(::stat((folder_ / "unpacked/sp ace.txt").c_str(), &status), 0);
  EXPECT_EQ(status.st_mtime, 0);
  EXPECT_EQ(status.st_mode & 0777, 0644U);
}

TEST_F(BadFiles, EmptyFilesAndShardsOfOneByteArePacked) {
  for (int i = 0; i < 30; ++i) write(fmt::format("s/{:02}", i), i % 3 == 0 ? "" : "x");
  CreateOptions tiny = options();
  tiny.shard_bytes = 1;
  EXPECT_EQ(create(tiny).shards, 30U);
  open(folder_ / "p")->verify();
}

}  // namespace
}  // namespace lockstep::pack
