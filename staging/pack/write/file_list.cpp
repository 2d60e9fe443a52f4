#include "staging/pack/write/file_list.h"

#include <fnmatch.h>

#include <algorithm>
#include <unordered_map>

#include "common/error.h"
#include "staging/pack/member_name.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

bool matches(const std::string& path, const std::vector<std::string>& filters) {
  const std::string name = fs::path(path).filename().string();
  return filters.empty() || std::any_of(filters.begin(), filters.end(), [&](const std::string& filter) {
           return ::fnmatch(filter.c_str(), path.c_str(), 0) == 0 ||
                  ::fnmatch(filter.c_str(), name.c_str(), 0) == 0;
         });
}

void add_folder(const fs::path& part, const fs::path& folder, const std::vector<std::string>& filters,
                std::vector<std::string>& files);

void add_entry(const fs::directory_entry& entry, const fs::path& folder,
               const std::vector<std::string>& filters, std::vector<std::string>& files) {
  // These use the type from the folder's listing; entry.symlink_status() would be a system call for each
  // file.
  const bool link = entry.is_symlink();
  if (!link && entry.is_directory()) {
    add_folder(entry.path(), folder, filters, files);
    return;
  }
  std::string path = entry.path().lexically_relative(folder).string();
  if (!matches(path, filters)) return;
  if (link) {
    fail("{} is a symbolic link: pack the file it points to, or exclude it with --filter",
         entry.path().string());
  }
  if (!entry.is_regular_file())
    fail("{} is not a regular file: exclude it with --filter", entry.path().string());
  files.push_back(std::move(path));
}

/// Does not use recursive_directory_iterator, whose errors name the topmost folder only.
void add_folder(const fs::path& part, const fs::path& folder, const std::vector<std::string>& filters,
                std::vector<std::string>& files) {
  for (const fs::directory_entry& entry : fs::directory_iterator(part))
    add_entry(entry, folder, filters, files);
}

[[noreturn]] void nothing_to_pack(const std::string& source, bool filtered) {
  fail("{}: nothing to pack: {}", source, filtered ? "no file matches --filter" : "it holds no files");
}

}  // namespace

std::vector<std::string> files_below(const fs::path& folder, const std::vector<std::string>& filters) {
  std::vector<std::string> files;
  try {
    if (!fs::exists(folder)) fail("{}: No such file or directory", folder.string());
    if (!fs::is_directory(folder))
      fail("{} is not a folder: name the folder of the files, or - and list the files on standard input",
           folder.string());
    add_folder(folder, folder, filters, files);
  } catch (const fs::filesystem_error& error) {
    fail("cannot list {}: {}", error.path1().empty() ? folder.string() : error.path1().string(),
         error.code().message());
  }
  if (files.empty()) nothing_to_pack(folder.string(), !filters.empty());
  std::sort(files.begin(), files.end(), [](const std::string& a, const std::string& b) {
    const MemberName left = split_member_name(a);
    const MemberName right = split_member_name(b);
    return left.key != right.key ? left.key < right.key : left.kind < right.kind;
  });
  return files;
}

std::vector<std::string> files_listed(std::istream& list, const std::vector<std::string>& filters) {
  struct Line {
    std::size_t sample;
    std::string path;
  };
  std::vector<Line> lines;
  std::unordered_map<std::string, std::size_t> samples;
  std::string text;
  for (std::size_t number = 1; std::getline(list, text); ++number) {
    if (text.empty()) continue;
    if (text.find('\0') != std::string::npos)
      fail("line {} of the list contains a zero byte: list one path per line (find -print)", number);
    if (text.starts_with("./")) text.erase(0, 2);
    const std::string_view reason = unsafe_member_name(text);
    if (!reason.empty())
      fail("line {} of the list: '{}' {}: list paths relative to the current folder", number, text, reason);
    if (!matches(text, filters)) continue;
    const std::size_t sample =
        samples.try_emplace(std::string(split_member_name(text).key), samples.size()).first->second;
    lines.push_back({sample, text});
  }
  if (lines.empty()) nothing_to_pack("the list", !filters.empty());
  std::sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return a.sample != b.sample ? a.sample < b.sample
                                : split_member_name(a.path).kind < split_member_name(b.path).kind;
  });
  std::vector<std::string> files;
  files.reserve(lines.size());
  for (Line& line : lines) {
    if (!files.empty() && files.back() == line.path) fail("the list names '{}' twice", line.path);
    files.push_back(std::move(line.path));
  }
  return files;
}

}  // namespace lockstep::pack
