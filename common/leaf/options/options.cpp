#include "common/leaf/options/options.h"

#include <algorithm>

#include "common/leaf/error.h"
#include "common/leaf/text.h"

namespace lockstep {
namespace {

constexpr std::array<OptionRow, kOptions> kTable{{
    {Option::stage, "stage", "SRC[,SRC...]|none",
     "lockstep: copy data (folders, files, patterns) to the nodes' local disks before tasks start; tasks find it in $LOCKSTEP_DATA; write a comma in a name as \\,",
     "LOCKSTEP_STAGE"},
    {Option::stage_mode, "stage-mode", "block|background",
     "lockstep: start tasks when all data is staged, or at once", "LOCKSTEP_STAGE_MODE", &Settings::mode},
    {Option::stage_tier, "stage-tier", "disk|ram", "lockstep: copy to the node's disk or memory",
     "LOCKSTEP_STAGE_TIER", &Settings::tier},
    {Option::stage_on_error, "stage-on-error", "fail|source",
     "lockstep: if staging fails, end the step, or read from the source", "LOCKSTEP_STAGE_ON_ERROR",
     &Settings::on_error},
    {Option::stage_verify, "stage-verify", "quick|full|off", "lockstep: how to check a local copy before use",
     "LOCKSTEP_STAGE_VERIFY", &Settings::verify},
    {Option::stage_batch, "stage-batch", "yes|no",
     "lockstep: whether the batch script's node stages before the script starts, or only steps of srun stage",
     "LOCKSTEP_STAGE_BATCH", &Settings::batch},
    {Option::pin, "pin", "auto|numa|cache|core|off[,...]",
     "lockstep: bind each task and its loader threads to CPUs; may be followed by workers=N, smt=K, mem=local|interleave|off, explain",
     "LOCKSTEP_PIN"},
    {Option::metrics, "metrics", "on|off", "lockstep: whether ranks write step times for the node's exporter",
     "LOCKSTEP_METRICS", &Settings::metrics},
}};

// The beginning of a user's text, which may be too long for a message.
std::string cut(std::string_view text) {
  constexpr std::size_t kMaxBytes = 80;
  return std::string(text.substr(0, kMaxBytes)) + (text.size() > kMaxBytes ? "..." : "");
}

std::string shown(Option option, std::string_view value) {
  return printable(std::string("--") + row_of(option).name + "=" + cut(value));
}

// The value, if it is valid.
std::string choose(Option option, std::string_view value) {
  const std::vector<std::string_view> words = words_of(option);
  if (std::find(words.begin(), words.end(), value) != words.end()) return std::string(value);
  throw Error(shown(option, value) + " is not valid; valid values: " + join(words, ", "));
}

[[noreturn]] void refuse_pin(std::string_view value, const std::string& why) {
  throw Error(
      shown(Option::pin, value) + ": " + why +
      "; valid values: auto, numa, cache, core, off, then any of workers=N, smt=K, mem=local|interleave|off, explain");
}

int number(std::string_view whole, std::string_view item, std::size_t begin, int low, int high) {
  const int value = to_number<int>(item.substr(begin)).value_or(low - 1);
  if (value < low || value > high) {
    refuse_pin(whole, "'" + cut(item) + "' must be a number from " + std::to_string(low) + " to " +
                          std::to_string(high));
  }
  return value;
}

constexpr std::string_view kWorkers = "workers=";
constexpr std::string_view kSmt = "smt=";
constexpr std::string_view kMemory = "mem=";
constexpr int kMaxWorkers = 4096;
constexpr int kMaxSmt = 16;

void add_pin_item(std::string_view whole, std::string_view item, PinRequest& pin) {
  if (item == "explain") {
    pin.explain = true;
  } else if (item.starts_with(kWorkers)) {
    if (pin.workers) refuse_pin(whole, "workers= appears twice");
    pin.workers = number(whole, item, kWorkers.size(), 0, kMaxWorkers);
  } else if (item.starts_with(kSmt)) {
    if (pin.smt) refuse_pin(whole, "smt= appears twice");
    pin.smt = number(whole, item, kSmt.size(), 1, kMaxSmt);
  } else if (item == "mem=local" || item == "mem=interleave" || item == "mem=off") {
    pin.memory = item.substr(kMemory.size());
  } else {
    refuse_pin(whole, "'" + cut(item) + "' is unknown");
  }
}

PinRequest parse_pin(std::string_view value) {
  PinRequest pin;
  const std::vector<std::string_view> items = split(value, ',');
  const std::vector<std::string_view> policies = words_of(Option::pin);
  if (std::find(policies.begin(), policies.end(), items.front()) == policies.end())
    refuse_pin(value, "'" + cut(items.front()) + "' is not a policy");
  pin.policy = items.front();
  for (std::size_t i = 1; i < items.size(); ++i) add_pin_item(value, items[i], pin);
  return pin;
}

constexpr std::size_t kMaxValueBytes = 65536;

void check_text(Option option, std::string_view value) {
  if (value.empty()) throw Error(std::string("--") + row_of(option).name + " has no value");
  if (value.size() > kMaxValueBytes) {
    throw Error(shown(option, value) + " is longer than " + std::to_string(kMaxValueBytes) + " bytes");
  }
  for (const char c : value) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      throw Error(shown(option, value) + " contains a control character");
    }
  }
}

}  // namespace

const std::array<OptionRow, kOptions>& option_table() {
  return kTable;
}

const OptionRow& row_of(Option option) {
  return kTable.at(static_cast<std::size_t>(option));
}

std::vector<std::string> split_sources(std::string_view value) {
  std::vector<std::string> sources;
  if (value == "none") return sources;
  std::string source;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (value[i] == '\\' && i + 1 < value.size() && value[i + 1] == ',') {
      source += value[++i];
    } else if (value[i] == ',') {
      sources.push_back(std::move(source));
      source.clear();
    } else {
      source += value[i];
    }
  }
  sources.push_back(std::move(source));
  for (const std::string& one : sources) {
    if (one.empty()) throw Error(shown(Option::stage, value) + " contains an empty name");
  }
  return sources;
}

std::string join_sources(const std::vector<std::string>& sources) {
  std::string value;
  for (const std::string& source : sources) {
    if (!value.empty()) value += ',';
    for (const char c : source) {
      if (c == ',') value += '\\';
      value += c;
    }
  }
  return value.empty() ? "none" : value;
}

void apply(Option option, std::string_view value, Settings& settings) {
  check_text(option, value);
  if (std::string Settings::*word = row_of(option).word; word != nullptr) {
    settings.*word = choose(option, value);
  } else if (option == Option::stage) {
    settings.sources = split_sources(value);
  } else {
    settings.pin = parse_pin(value);
  }
}

std::vector<std::string_view> words_of(Option option) {
  if (option == Option::stage) return {};
  const std::string_view arguments = row_of(option).arguments;
  return split(arguments.substr(0, arguments.find('[')), '|');  // more than a policy may follow in --pin
}

std::string word_of(Option option, const Settings& settings) {
  if (std::string Settings::*word = row_of(option).word; word != nullptr) return settings.*word;
  return option == Option::pin ? settings.pin.policy : "";
}

}  // namespace lockstep
