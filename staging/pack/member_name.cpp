#include "staging/pack/member_name.h"

#include <algorithm>
#include <array>
#include <string>

namespace lockstep::pack {
namespace {

bool all_dots(std::string_view text) {
  return !text.empty() && text.find_first_not_of('.') == std::string_view::npos;
}

/// Whether WebDataset's r"^((?:.*/|)[^.]+)[.]([^/]*)$" finds a key that ends at the first dot of the file name: "d/" in
/// "d/.b", but none in ".b" and "d.e/.b". A "." of the expression is not a line break.
bool is_key(std::string_view path) {
  if (path.empty()) return false;
  const std::string_view folders = path.substr(0, path.size() - 1);
  const std::size_t slash = folders.rfind('/', folders.find('\n'));
  return path.find('.', slash + 1) == std::string_view::npos;  // npos + 1 is 0
}

// In lower case, since Windows' file systems ignore it.
constexpr std::array<std::string_view, 41> kNames = {
    // macOS
    ".ds_store", ".appledouble", ".appledb", ".appledesktop", ".localized", ".spotlight-v100", ".trashes",
    ".fseventsd", ".temporaryitems", "temporary items", "network trash folder", ".documentrevisions-v100",
    ".apdisk", ".volumeicon.icns", "icon\r", "__macosx",
    // Linux, and programs of any system
    ".directory", "lost+found", ".cache", ".git", ".gitignore", ".gitattributes", ".gitkeep", ".svn", ".hg",
    ".ipynb_checkpoints", "__pycache__", ".dropbox", ".picasa.ini", "picasa.ini", "_success",
    // Windows
    "thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "$recycle.bin",
    "system volume information",
    // network storage of Synology and QNAP
    "@eadir", "#recycle", "@recycle", ".@__thumb"};
constexpr std::array<std::string_view, 5> kBeginnings = {"._", ".trash-", ".nfs", "~$", ".~lock."};

bool is_system_name(std::string_view name) {
  const std::string lower = lower_case(name);
  const auto begins = [&](std::string_view with) {
    return lower.size() > with.size() && lower.starts_with(with);
  };
  return std::find(kNames.begin(), kNames.end(), lower) != kNames.end() ||
         std::any_of(kBeginnings.begin(), kBeginnings.end(), begins) ||
         (name.starts_with('.') && name.ends_with(".crc"));  // Hadoop's checksums
}

/// "__meta__" and all below "__meta__/", as WebDataset's r"__[^/]*__($|/)".
bool is_web_data_set_meta(std::string_view member) {
  const std::string_view first = member.substr(0, member.find('/'));
  return first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
}

}  // namespace

MemberName split_member_name(std::string_view path) {
  const std::size_t dot = path.find('.', path.rfind('/') + 1);  // npos + 1 is 0
  if (dot == std::string_view::npos || !is_key(path.substr(0, dot))) return {path, {}};
  if (all_dots(path.substr(dot))) return {path.substr(0, dot), path.substr(dot)};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& letter : lower) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return lower;
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

std::string join_member_name(std::string_view key, std::string_view kind) {
  std::string path(key);
  if (!kind.empty() && !all_dots(kind)) path += '.';
  path += kind;
  return path;
}

std::string_view unsafe_member_name(std::string_view path) {
  if (path.empty()) return "is empty";
  if (path.find('\0') != std::string_view::npos) return "contains a zero byte";
  if (path.front() == '/') return "is an absolute path";
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view component = path.substr(begin, end - begin);
    if (component == "..") return "leaves its folder";
    if (component.empty() || component == ".") return "is not a plain relative path";
    begin = end + 1;
  }
  return {};
}

std::string_view unsafe_kind(std::string_view kind) {
  if (kind.find('/') != std::string_view::npos) return "contains a slash";
  if (kind.find('\0') != std::string_view::npos) return "contains a zero byte";
  return {};
}

bool is_system_file(std::string_view path) {
  while (!path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    if (is_system_name(path.substr(0, slash))) return true;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return false;
}

bool is_about_data(std::string_view path) {
  const std::string name = lower_case(path.substr(path.rfind('/') + 1));  // npos + 1 is 0
  const std::size_t dot = std::min(name.find('.'), name.size());
  const auto any_of = [](std::string_view text, std::initializer_list<std::string_view> known) {
    return std::find(known.begin(), known.end(), text) != known.end();
  };
  return any_of(std::string_view(name).substr(0, dot), {"readme", "license", "licence", "copying"}) &&
         any_of(std::string_view(name).substr(dot), {"", ".md", ".txt", ".rst", ".html", ".htm", ".pdf"});
}

bool is_left_out(std::string_view member, Members members) {
  if (!unsafe_member_name(member).empty()) return false;
  return is_system_file(member) || is_web_data_set_meta(member) ||
         (members == Members::with_ending && split_member_name(member).kind.empty());
}

}  // namespace lockstep::pack
