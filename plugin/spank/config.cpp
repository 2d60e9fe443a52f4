#include "plugin/spank/config.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// One key = value line, and how to say that it is wrong.
struct Line {
  const std::string& path;
  int number;
  std::string_view key, value;

  [[noreturn]] void refuse(const std::string& why) const {
    throw Refusal(path + ":" + std::to_string(number) + ": " + why);
  }
  bool yes() const {
    if (value == "yes" || value == "on" || value == "true") return true;
    if (value == "no" || value == "off" || value == "false") return false;
    refuse("'" + std::string(key) + "' wants yes or no");
  }
  int integer(std::string_view text, int low, int high) const {
    int result = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), result);
    if (error != std::errc{} || stop != text.data() + text.size() || result < low || result > high) {
      refuse("'" + std::string(key) + "' wants a number from " + std::to_string(low) + " to " +
             std::to_string(high));
    }
    return result;
  }
  std::string folder() const {
    if (!value.starts_with('/')) refuse("'" + std::string(key) + "' wants an absolute path");
    return std::string(value);
  }
  std::vector<std::string> folders() const {
    std::vector<std::string> list;
    for (std::size_t begin = 0; begin <= value.size();) {
      const std::size_t end = std::min(value.find(',', begin), value.size());
      const Line item{path, number, key, trimmed(value.substr(begin, end - begin))};
      list.push_back(item.folder());
      begin = end + 1;
    }
    return list;
  }
};

constexpr int kHighestPort = 65535;
constexpr int kDay = 86400;

void set_ports(const Line& line, Config& config) {
  const std::size_t dash = line.value.find('-');
  config.first_port = line.integer(trimmed(line.value.substr(0, dash)), 1024, kHighestPort);
  config.last_port = dash == std::string_view::npos ? config.first_port
                                                    : line.integer(trimmed(line.value.substr(dash + 1)),
                                                                   config.first_port, kHighestPort);
}

void set_prefix(const Line& line, Config& config) {
  for (const char c : line.value) {
    if ((c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-') {
      line.refuse("'prefix' may hold small letters, digits and '-'");
    }
  }
  config.prefix = line.value;
}

bool set_default(const Line& line, Config& config) {
  for (const OptionRow& row : option_table()) {
    std::string key = row.name;
    std::replace(key.begin(), key.end(), '-', '_');
    if (key != line.key || row.option == Option::stage) continue;
    Settings checked;
    try {
      apply(row.option, line.value, checked);
    } catch (const Refusal& refusal) {
      line.refuse(refusal.what());
    }
    config.defaults.at(static_cast<std::size_t>(row.option)) = std::string(line.value);
    return true;
  }
  return false;
}

void set(const Line& line, Config& config) {
  const std::string_view key = line.key;
  if (key == "enabled") {
    config.enabled = line.yes();
  } else if (key == "cache") {
    config.cache = line.folder();
  } else if (key == "sources") {
    config.sources = line.folders();
  } else if (key == "helpers") {
    config.helpers = line.folder();
  } else if (key == "prefix") {
    set_prefix(line, config);
  } else if (key == "ports") {
    set_ports(line, config);
  } else if (key == "records") {
    config.records = line.folder();
  } else if (key == "group") {
    config.group = line.value;
  } else if (key == "check_sources") {
    config.check_sources = line.yes();
  } else if (key == "wait") {
    config.wait = line.integer(line.value, 1, kDay);
  } else if (key == "keep_records") {
    config.keep_records = line.integer(line.value, 0, kDay);
  } else if (key == "total" || key == "quota" || key == "ram") {
    line.refuse("'" + std::string(key) + "' is not supported by this version");
  } else if (!set_default(line, config)) {
    line.refuse("unknown key '" + std::string(key) + "'");
  }
}

}  // namespace

Config parse_config(std::string_view text, const std::string& path, std::string_view partition) {
  Config config;
  std::string section;
  int number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view content = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    if (content.front() == '[') {
      if (content.back() != ']') Line{path, number, {}, {}}.refuse("a section wants a ']' at its end");
      section = trimmed(content.substr(1, content.size() - 2));
      continue;
    }
    const std::size_t equals = content.find('=');
    if (equals == std::string_view::npos) Line{path, number, {}, {}}.refuse("not a 'key = value' line");
    const Line line{path, number, trimmed(content.substr(0, equals)), trimmed(content.substr(equals + 1))};
    // Lines for other partitions are read too: a mistake shows at once, and the job's end needs every cache.
    Config elsewhere;
    Config& into = section.empty() || section == partition ? config : elsewhere;
    set(line, into);
    if (line.key == "cache") config.caches.push_back(into.cache);
    if (!section.empty() && line.key == "prefix") line.refuse("'prefix' holds for all partitions");
  }
  return config;
}

Config read_config(const std::string& path, std::string_view partition) {
  constexpr std::size_t kLongest = 1U << 20U;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw Refusal("cannot read " + path + ": " + errno_text(errno));
  std::string text;
  std::array<char, 4096> buffer{};
  ssize_t got = 0;
  while ((got = ::read(fd, buffer.data(), buffer.size())) > 0 && text.size() < kLongest) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  const int error = errno;
  ::close(fd);
  if (got < 0) throw Refusal("cannot read " + path + ": " + errno_text(error));
  return parse_config(text, path, partition);
}

}  // namespace lockstep::spank
