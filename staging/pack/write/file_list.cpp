#include "staging/pack/write/file_list.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "common/error.h"
#include "common/leaf/text.h"
#include "staging/pack/member_name.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

bool matches(const std::string& path, const std::vector<std::string>& filters) {
  const std::string name = fs::path(path).filename().string();
  const bool system = is_system_file(name);
  return filters.empty() || std::any_of(filters.begin(), filters.end(), [&](const std::string& filter) {
           // "*.jpg" is not meant to match the Mac's "._a.jpg".
           const std::size_t last = filter.rfind('/') + 1;  // npos + 1 is 0
           if (system && (last == filter.size() || std::strchr("*?[", filter[last]) != nullptr)) return false;
           return ::fnmatch(filter.c_str(), path.c_str(), 0) == 0 ||
                  ::fnmatch(filter.c_str(), name.c_str(), 0) == 0;
         });
}

/// Does not use recursive_directory_iterator, whose errors name the topmost folder only.
class FolderList {
 public:
  FolderList(const fs::path& folder, const std::vector<std::string>& filters)
      : folder_(folder), filters_(filters) {}

  void add(const fs::path& part) {
    for (const fs::directory_entry& entry : fs::directory_iterator(part)) add_entry(entry);
  }

  std::vector<std::string> files;
  StrayFiles stray;

 private:
  void add_entry(const fs::directory_entry& entry) {
    std::string path = entry.path().lexically_relative(folder_).string();
    // These use the type from the folder's listing; entry.symlink_status() would be a system call for each
    // file.
    const bool link = entry.is_symlink();
    if (!link && entry.is_directory()) {
      if (!is_system_file(path)) return add(entry.path());
      for (fs::recursive_directory_iterator below(entry.path(),
                                                  fs::directory_options::skip_permission_denied);
           below != fs::recursive_directory_iterator(); ++below) {
        if (!below->is_directory()) stray.add(below->path().lexically_relative(folder_).string());
      }
      return;
    }
    if (filters_.empty() && is_stray(path)) return stray.add(path);
    if (!matches(path, filters_)) return;
    if (link) {
      fail("{} is a symbolic link: pack the file it points to, or exclude it with --filter",
           entry.path().string());
    }
    if (!entry.is_regular_file())
      fail("{} is not a regular file: exclude it with --filter", entry.path().string());
    files.push_back(std::move(path));
  }

  const fs::path& folder_;
  const std::vector<std::string>& filters_;
};

[[noreturn]] void nothing_to_pack(const std::string& source, bool filtered, const StrayFiles& stray = {}) {
  if (stray.count > 0)
    fail("{}: nothing to pack: only files like {}, which are left out: choose files with --filter", source,
         stray.first);
  fail("{}: nothing to pack: {}", source, filtered ? "no file matches --filter" : "it holds no files");
}

}  // namespace

std::string describe(const StrayFiles& stray) {
  const bool one = stray.count == 1;
  return fmt::format("{} file{} left out that {} not data, such as {}", stray.count, one ? "" : "s",
                     one ? "is" : "are", printable(stray.first));
}

std::vector<std::string> files_below(const fs::path& folder, const std::vector<std::string>& filters,
                                     StrayFiles* stray) {
  FolderList list(folder, filters);
  std::vector<std::string>& files = list.files;
  try {
    if (!fs::exists(folder)) fail("{}: No such file or directory", folder.string());
    if (!fs::is_directory(folder))
      fail("{} is not a folder: name the folder of the files, or - and list the files on standard input",
           folder.string());
    list.add(folder);
  } catch (const fs::filesystem_error& error) {
    fail("cannot list {}: {}", error.path1().empty() ? folder.string() : error.path1().string(),
         error.code().message());
  }
  if (stray != nullptr) *stray = list.stray;
  if (files.empty()) nothing_to_pack(folder.string(), !filters.empty(), list.stray);
  std::sort(files.begin(), files.end(), [](const std::string& a, const std::string& b) {
    const MemberName left = split_member_name(a);
    const MemberName right = split_member_name(b);
    return left.key != right.key ? left.key < right.key : left.kind < right.kind;
  });
  return std::move(files);
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
