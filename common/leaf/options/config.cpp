#include "common/leaf/options/config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "common/leaf/error.h"
#include "common/leaf/network.h"
#include "common/leaf/text.h"
#include "common/leaf/unique_fd.h"

namespace lockstep {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// One key = value line, with the readers of its value. They throw Error naming the line.
struct Line {
  const std::string& path;
  int number;
  std::string_view key, value;

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(path + ":" + std::to_string(number) + ": " + why);
  }
  bool yes() const {
    if (value == "yes" || value == "on" || value == "true") return true;
    if (value == "no" || value == "off" || value == "false") return false;
    refuse("'" + std::string(key) + "' must be yes or no");
  }
  // In bytes; K, M, G and T are powers of 1,024, as in Slurm.
  std::uint64_t size() const {
    std::uint64_t result = 0;
    const char* const end = value.data() + value.size();
    auto [stop, error] = std::from_chars(value.data(), end, result);
    constexpr std::string_view kUnits = "KMGT";
    const std::size_t unit = end - stop == 1 ? kUnits.find(*stop) : std::string_view::npos;
    const unsigned shift = unit == std::string_view::npos ? 0 : static_cast<unsigned>(unit + 1) * 10;
    if (error != std::errc{} || (stop != end && shift == 0) || result > (~std::uint64_t{0} >> shift)) {
      refuse("'" + std::string(key) + "' must be a size such as 500G");
    }
    return result << shift;
  }
  int integer(std::string_view text, int low, int high) const {
    const int result = to_number<int>(text).value_or(low - 1);
    if (result < low || result > high) {
      refuse("'" + std::string(key) + "' must be a number from " + std::to_string(low) + " to " +
             std::to_string(high));
    }
    return result;
  }
  std::string folder() const {
    if (!value.starts_with('/')) refuse("'" + std::string(key) + "' must be an absolute path");
    return std::string(value);
  }
  std::vector<std::string_view> items() const {
    std::vector<std::string_view> list = split(value, ',');
    for (std::string_view& item : list) item = trimmed(item);
    return list;
  }
  std::vector<std::string> folders() const {
    std::vector<std::string> list;
    for (const std::string_view item : items()) list.push_back(Line{path, number, key, item}.folder());
    return list;
  }
};

constexpr int kDay = 86400;
constexpr int kYear = 366 * kDay;

void set_ports(const Line& line, Config& config) {
  const std::size_t dash = line.value.find('-');
  config.first_port = line.integer(trimmed(line.value.substr(0, dash)), 1024, kMaxPort);
  config.last_port = dash == std::string_view::npos
                         ? config.first_port
                         : line.integer(trimmed(line.value.substr(dash + 1)), config.first_port, kMaxPort);
}

void set_peer_network(const Line& line, Config& config) {
  config.peer_networks.clear();
  for (const std::string_view item : line.items()) {
    if (!Subnet::parse(item)) line.refuse("'peer_network' must be a network such as 10.1.0.0/16");
    config.peer_networks.emplace_back(item);
  }
}

void set_prefix(const Line& line, Config& config) {
  for (const char c : line.value) {
    if ((c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-') {
      line.refuse("'prefix' may contain only lower-case letters, digits and '-'");
    }
  }
  config.prefix = line.value;
}

// The option whose name, with '_' for '-', is `key`. --stage has neither a default nor limits.
const OptionRow* option_named(std::string_view key) {
  for (const OptionRow& row : option_table()) {
    std::string name = row.name;
    std::replace(name.begin(), name.end(), '-', '_');
    if (name == key && row.option != Option::stage) return &row;
  }
  return nullptr;
}

bool set_default(const Line& line, Config& config) {
  const OptionRow* const row = option_named(line.key);
  if (row == nullptr) return false;
  Settings checked;
  try {
    apply(row->option, line.value, checked);
  } catch (const Error& error) {
    line.refuse(error.what());
  }
  config.defaults.at(static_cast<std::size_t>(row->option)) = std::string(line.value);
  return true;
}

bool set_limit(const Line& line, Config& config) {
  constexpr std::string_view kAllow = "allow_";
  if (!line.key.starts_with(kAllow)) return false;
  const OptionRow* const row = option_named(line.key.substr(kAllow.size()));
  if (row == nullptr) return false;
  const std::vector<std::string_view> words = words_of(row->option);
  std::vector<std::string> allowed;
  for (const std::string_view item : line.items()) {
    if (std::find(words.begin(), words.end(), item) == words.end()) {
      line.refuse("'" + std::string(item) + "' is not a value of --" + row->name);
    }
    allowed.emplace_back(item);
  }
  config.allowed.at(static_cast<std::size_t>(row->option)) = std::move(allowed);
  return true;
}

struct Key {
  std::string_view name;
  void (*set)(const Line& line, Config& config);
};

constexpr std::array kKeys{
    Key{"enabled", [](const Line& line, Config& config) { config.enabled = line.yes(); }},
    Key{"cache", [](const Line& line, Config& config) { config.cache = line.folder(); }},
    Key{"cache_must_be_mount", [](const Line& line, Config& config) { config.must_be_mount = line.yes(); }},
    Key{"reserve", [](const Line& line, Config& config) { config.reserve = line.size(); }},
    Key{"min_free", [](const Line& line, Config& config) { config.min_free = line.size(); }},
    Key{"total", [](const Line& line, Config& config) { config.total = line.size(); }},
    Key{"quota", [](const Line& line, Config& config) { config.quota = line.size(); }},
    Key{"keep", [](const Line& line, Config& config) { config.keep = line.integer(line.value, 0, kYear); }},
    Key{"ram", [](const Line& line, Config& config) { config.ram = line.size(); }},
    Key{"ram_cache", [](const Line& line, Config& config) { config.ram_cache = line.folder(); }},
    Key{"shared", [](const Line& line, Config& config) { config.shared = line.folder(); }},
    Key{"bandwidth", [](const Line& line, Config& config) { config.bandwidth = line.size(); }},
    Key{"source_bandwidth", [](const Line& line, Config& config) { config.source_bandwidth = line.size(); }},
    Key{"cooperate", [](const Line& line, Config& config) { config.cooperate = line.yes(); }},
    Key{"sources", [](const Line& line, Config& config) { config.sources = line.folders(); }},
    Key{"helpers", [](const Line& line, Config& config) { config.helpers = line.folder(); }},
    Key{"prefix", set_prefix},
    Key{"ports", set_ports},
    Key{"peer_network", set_peer_network},
    Key{"records", [](const Line& line, Config& config) { config.records = line.folder(); }},
    Key{"links", [](const Line& line, Config& config) { config.links = line.folder(); }},
    Key{"group", [](const Line& line, Config& config) { config.group = line.value; }},
    Key{"check_sources", [](const Line& line, Config& config) { config.check_sources = line.yes(); }},
    Key{"wait", [](const Line& line, Config& config) { config.wait = line.integer(line.value, 1, kDay); }},
    Key{"source_patience",
        [](const Line& line, Config& config) { config.source_patience = line.integer(line.value, 1, kDay); }},
    Key{"keep_records",
        [](const Line& line, Config& config) { config.keep_records = line.integer(line.value, 0, kDay); }},
};

void set(const Line& line, Config& config) {
  const auto* const key =
      std::find_if(kKeys.begin(), kKeys.end(), [&](const Key& each) { return each.name == line.key; });
  if (key != kKeys.end()) {
    key->set(line, config);
  } else if (!set_default(line, config) && !set_limit(line, config)) {
    line.refuse("unknown key '" + std::string(line.key) + "'");
  }
}

void add_once(std::vector<std::string>& list, const std::string& item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}

// Adds what `line`, which has been set in `from`, means for all partitions together.
void collect_for_all_partitions(const Line& line, const Config& from, Config& config) {
  if (line.key == "cache") add_once(config.caches, from.cache);
  if (line.key == "links") add_once(config.all_links, from.links);
  if (line.key == "ram_cache" || line.key == "ram") add_once(config.caches, from.ram_cache);
  config.ram_somewhere = config.ram_somewhere || from.ram > 0;
  for (std::size_t option = 0; option < kOptions; ++option) {
    const auto& allowed = from.allowed.at(option);
    if (!allowed) continue;
    for (const std::string& word : *allowed) add_once(config.allowed_somewhere.at(option), word);
  }
}

// Root follows this file on every node.
void check_owner(const struct stat& about, const std::string& path) {
  if (about.st_uid != 0 || (about.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw Error(path + " must belong to root and be writable by root alone: chown root " + path +
                "; chmod go-w " + path);
  }
}

std::string read_text(const std::string& path, bool from_anyone) {
  constexpr std::size_t kMaxBytes = 1U << 20U;
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat about {};
  if (!fd || ::fstat(fd.get(), &about) != 0) throw Error("cannot read " + path + ": " + errno_text(errno));
  if (!S_ISREG(about.st_mode)) throw Error("cannot read " + path + ": it is not a regular file");
  if (!from_anyone) check_owner(about, path);
  std::string text;
  std::array<char, 4096> buffer{};
  ssize_t got = 0;
  while ((got = ::read(fd.get(), buffer.data(), buffer.size())) > 0 && text.size() < kMaxBytes) {
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  if (got < 0) throw Error("cannot read " + path + ": " + errno_text(errno));
  return text;
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
      if (content.back() != ']') Line{path, number, {}, {}}.refuse("a section must end with ']'");
      section = trimmed(content.substr(1, content.size() - 2));
      add_once(config.partitions, section);
      continue;
    }
    const std::size_t equals = content.find('=');
    if (equals == std::string_view::npos) Line{path, number, {}, {}}.refuse("not a 'key = value' line");
    const Line line{path, number, trimmed(content.substr(0, equals)), trimmed(content.substr(equals + 1))};
    // Other partitions' lines are read too: mistakes show at once, and a job's end needs every cache.
    Config elsewhere;
    Config& into = section.empty() || section == partition ? config : elsewhere;
    set(line, into);
    collect_for_all_partitions(line, into, config);
    if (!section.empty() && line.key == "prefix") {
      line.refuse("'prefix' applies to all partitions: move it before the first [section]");
    }
  }
  return config;
}

Config read_config(const std::string& path, std::string_view partition) {
  return parse_config(read_text(path, false), path, partition);
}

std::vector<CacheLimits> cache_limits(const std::string& path) {
  const std::string text = read_text(path, false);
  std::vector<CacheLimits> all;
  const auto add = [&all](const CacheLimits& limits) {
    if (limits.cache.empty()) return;
    const auto same = std::find_if(all.begin(), all.end(),
                                   [&](const CacheLimits& one) { return one.cache == limits.cache; });
    if (same == all.end()) return all.push_back(limits);
    const auto wider = [](std::uint64_t a, std::uint64_t b) { return a == 0 || b == 0 ? 0 : std::max(a, b); };
    *same = {limits.cache, wider(same->quota, limits.quota), wider(same->total, limits.total),
             std::min(same->reserve, limits.reserve), std::max(same->keep, limits.keep)};
  };
  std::vector<std::string> partitions = parse_config(text, path, "").partitions;
  partitions.emplace_back();
  for (const std::string& partition : partitions) {
    const Config config = parse_config(text, path, partition);
    add({config.cache, config.quota, config.total, config.reserve, config.keep});
    if (config.ram > 0) add({config.ram_cache, config.ram, 0, 0, config.keep});
  }
  return all;
}

std::string prefix_of_refused(const std::string& path) {
  try {
    return parse_config(read_text(path, true), path, "").prefix;
  } catch (const Error&) {
    return "";
  }
}

void check_allowed(const Config& config, Option option, const Settings& settings, bool partition_known) {
  const auto index = static_cast<std::size_t>(option);
  const std::optional<std::vector<std::string>>& allowed = config.allowed.at(index);
  // Without a limit in the general part, partitions without a section allow all words.
  if (!allowed) return;
  const std::vector<std::string>& words = partition_known ? *allowed : config.allowed_somewhere.at(index);
  const std::string word = word_of(option, settings);
  if (std::find(words.begin(), words.end(), word) != words.end()) return;
  throw Error(std::string("--") + row_of(option).name + "=" + word +
              " is not allowed here; the administrator allows: " + join(words, ", "));
}

}  // namespace lockstep
