#include "tests/device/races.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

namespace lockstep::simulated {
namespace {

bool overlap(const Range& a, const Range& b) {
  return a.begin < b.end() && b.begin < a.end();
}

bool covers(const Range& outer, const Range& inner) {
  return outer.begin <= inner.begin && inner.end() <= outer.end();
}

// Findings often name the same calls, and addr2line takes a while.
std::string find_source(void* frame);
std::string source_of(void* frame) {
  static std::map<void*, std::string> known;
  const auto found = known.find(frame);
  return found != known.end() ? found->second : known[frame] = find_source(frame);
}

// "file:line" of the code before a return address; empty if it is not known, or not of the program under test.
std::string find_source(void* frame) {
  Dl_info module{};
  if (::dladdr(frame, &module) == 0 || module.dli_fname == nullptr) return {};
  // The frames of LibTorch and of the system have no lines of ours, and addr2line reads all symbols to find that out.
  const std::string_view library = module.dli_fname;
  if (library.find("/torch/lib/") != library.npos || library.starts_with("/lib/")) return {};
  const auto offset = static_cast<const char*>(frame) - static_cast<const char*>(module.dli_fbase) - 1;
  const std::string file = std::string_view(module.dli_fname).starts_with('/')
                               ? module.dli_fname
                               : fmt::format("/proc/{}/exe", ::getpid());
  const std::string command = fmt::format("addr2line -e '{}' {:#x} 2>/dev/null", file, offset);
  const std::unique_ptr<FILE, int (*)(FILE*)> output(::popen(command.c_str(), "r"), ::pclose);
  std::array<char, 512> line{};
  if (!output || std::fgets(line.data(), line.size(), output.get()) == nullptr) return {};
  std::string text(line.data());
  text = text.substr(0, text.find_first_of(" \n"));
  // The simulation's own files say nothing, nor do the headers of the C++ library and of LibTorch.
  const bool own =
      text.find("/tests/device/") != std::string::npos && text.find("_test.cpp") == std::string::npos;
  if (text.starts_with("?") || own || text.find("/c++/") != std::string::npos ||
      text.find("/torch/include/") != std::string::npos)
    return {};
  return text.substr(text.rfind('/') + 1);
}

}  // namespace

Label::Label(const char* name) : call(name), depth(::backtrace(frames.data(), frames.size())) {
}

std::string Label::text() const {
  std::string text = call;
  const char* link = " at ";
  for (int i = 0, named = 0; i < depth && named < 3; ++i) {
    const std::string source = source_of(frames.at(static_cast<std::size_t>(i)));
    if (source.empty()) continue;
    text += link + source;
    link = " < ";
    ++named;
  }
  return text;
}

std::string Label::site() const {
  std::string source;
  for (int i = 0; i < depth && source.empty(); ++i)
    source = source_of(frames.at(static_cast<std::size_t>(i)));
  return source;
}

void RaceDetector::access(const void* block, const Range& range, Stamp stamp, const VectorClock& known,
                          const Label& label, std::vector<Finding>& findings) {
  if (range.bytes == 0) return;
  auto& accesses = accesses_[block];
  std::erase_if(accesses, [&](const Access& before) {
    if (!overlap(before.range, range)) return false;
    if (!known.knows(before.stamp)) {
      if (before.range.write || range.write) {
        findings.push_back([range, label, before] {
          return fmt::format("race: {} {} {} bytes at {}, and nothing orders it after {}, which {} them",
                             label.text(), range.write ? "writes" : "reads", range.bytes,
                             static_cast<const void*>(range.begin), before.label.text(),
                             before.range.write ? "writes" : "reads");
        });
      }
      return false;
    }
    // A later access that conflicts with the earlier one conflicts with this one too.
    return before.stamp != stamp && covers(range, before.range) && (range.write || !before.range.write);
  });
  accesses.push_back({range, stamp, label});
}

bool RaceDetector::knows_all(std::string_view calls, const VectorClock& known) const {
  return std::all_of(accesses_.begin(), accesses_.end(), [&](const auto& of_block) {
    return std::all_of(of_block.second.begin(), of_block.second.end(), [&](const Access& access) {
      return !std::string_view(access.label.call).starts_with(calls) || known.knows(access.stamp);
    });
  });
}

void RaceDetector::forget(const void* block) {
  accesses_.erase(block);
}

}  // namespace lockstep::simulated
