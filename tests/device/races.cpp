#include "tests/device/races.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace lockstep::simulated {
namespace {

bool overlap(const Range& a, const Range& b) {
  return a.begin < b.end() && b.begin < a.end();
}

bool covers(const Range& outer, const Range& inner) {
  return outer.begin <= inner.begin && inner.end() <= outer.end();
}

// "file:line" of the code before a return address; empty if the program has no debug information for it.
std::string source_of(void* frame) {
  Dl_info module{};
  if (::dladdr(frame, &module) == 0 || module.dli_fname == nullptr) return {};
  const auto offset = static_cast<const char*>(frame) - static_cast<const char*>(module.dli_fbase) - 1;
  const std::string file = std::string_view(module.dli_fname).starts_with('/')
                               ? module.dli_fname
                               : fmt::format("/proc/{}/exe", ::getpid());
  const std::string command = fmt::format("addr2line -se '{}' {:#x} 2>/dev/null", file, offset);
  const std::unique_ptr<FILE, int (*)(FILE*)> output(::popen(command.c_str(), "r"), ::pclose);
  std::array<char, 512> line{};
  if (!output || std::fgets(line.data(), line.size(), output.get()) == nullptr) return {};
  std::string text(line.data());
  text = text.substr(0, text.find_first_of(" \n"));
  return text.starts_with("?") ? "" : text;
}

}  // namespace

Label::Label(const char* name) : call(name), depth(::backtrace(frames.data(), frames.size())) {
}

std::string Label::text() const {
  std::string text = call;
  const char* link = " at ";
  // The first frames are the simulation's.
  for (int i = 1, named = 0; i < depth && named < 3; ++i) {
    const std::string source = source_of(frames.at(static_cast<std::size_t>(i)));
    if (source.empty() || source.starts_with("simulator.") || source.starts_with("cudart.") ||
        source.starts_with("nccl_calls.") || source.starts_with("races.")) {
      continue;
    }
    text += link + source;
    link = " < ";
    ++named;
  }
  return text;
}

void RaceDetector::access(const Range& range, Stamp stamp, const VectorClock& known, const Label& label,
                          std::vector<std::string>& findings) {
  if (range.bytes == 0) return;
  std::erase_if(accesses_, [&](const Access& before) {
    if (!overlap(before.range, range)) return false;
    if (!known.knows(before.stamp)) {
      if (before.range.write || range.write) {
        findings.push_back(fmt::format("race: {} {} {} bytes at {}, and nothing orders it after {}, which {} them",
                                       label.text(), range.write ? "writes" : "reads", range.bytes,
                                       static_cast<const void*>(range.begin), before.label.text(),
                                       before.range.write ? "writes" : "reads"));
      }
      return false;
    }
    // What conflicts with the earlier access conflicts with this one too.
    return before.stamp != stamp && covers(range, before.range) && (range.write || !before.range.write);
  });
  accesses_.push_back({range, stamp, label});
}

void RaceDetector::forget(const Range& range) {
  std::erase_if(accesses_, [&](const Access& access) { return overlap(access.range, range); });
}

}  // namespace lockstep::simulated
