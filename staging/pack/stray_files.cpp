#include "staging/pack/stray_files.h"

#include <strings.h>

#include <algorithm>
#include <array>
#include <string>

#include "staging/pack/member_name.h"

namespace lockstep::pack {
namespace {

// Compared without case, since Windows' file systems ignore it.
constexpr std::array<std::string_view, 26> kNames = {".ds_store",
                                                     ".appledouble",
                                                     ".localized",
                                                     ".spotlight-v100",
                                                     ".trashes",
                                                     ".fseventsd",
                                                     ".temporaryitems",
                                                     ".documentrevisions-v100",
                                                     ".apdisk",
                                                     ".volumeicon.icns",
                                                     ".directory",
                                                     ".git",
                                                     ".gitignore",
                                                     ".gitattributes",
                                                     ".gitkeep",
                                                     ".ipynb_checkpoints",
                                                     "__macosx",
                                                     "icon\r",
                                                     "thumbs.db",
                                                     "ehthumbs.db",
                                                     "ehthumbs_vista.db",
                                                     "desktop.ini",
                                                     "$recycle.bin",
                                                     "system volume information",
                                                     "@eadir",
                                                     "_success"};
constexpr std::array<std::string_view, 3> kBeginnings = {"._", ".trash-", ".nfs"};

bool equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

bool begins(std::string_view text, std::string_view with) {
  return text.size() > with.size() && equal(text.substr(0, with.size()), with);
}

bool is_system_name(std::string_view name) {
  const auto is = [&](std::string_view known) { return equal(name, known); };
  const auto has = [&](std::string_view beginning) { return begins(name, beginning); };
  return std::any_of(kNames.begin(), kNames.end(), is) ||
         std::any_of(kBeginnings.begin(), kBeginnings.end(), has) ||
         (name.starts_with('.') && name.ends_with(".crc"));  // Hadoop's checksums
}

/// "__meta__" and all below "__meta__/", as WebDataset's r"__[^/]*__($|/)".
bool is_web_data_set_meta(std::string_view member) {
  const std::string_view first = member.substr(0, member.find('/'));
  return first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
}

}  // namespace

bool is_system_file(std::string_view path) {
  while (!path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    if (is_system_name(path.substr(0, slash))) return true;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return false;
}

bool is_about_data(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  const std::size_t dot = std::min(name.find('.'), name.size());
  const auto any_of = [](std::string_view text, std::initializer_list<std::string_view> known) {
    return std::any_of(known.begin(), known.end(), [&](std::string_view is) { return equal(text, is); });
  };
  return any_of(name.substr(0, dot), {"readme", "license", "licence", "copying"}) &&
         any_of(name.substr(dot), {"", ".md", ".txt", ".rst", ".html", ".htm", ".pdf"});
}

bool is_left_out(std::string_view member, Members members) {
  if (!unsafe_member_name(member).empty()) return false;
  return is_system_file(member) || is_web_data_set_meta(member) ||
         (members == Members::with_ending && split_member_name(member).kind.empty());
}

}  // namespace lockstep::pack
