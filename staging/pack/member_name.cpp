#include "staging/pack/member_name.h"

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

}  // namespace lockstep::pack
