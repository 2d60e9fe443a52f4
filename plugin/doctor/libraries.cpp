#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <regex>
#include <sstream>
#include <vector>

#include "common/environment.h"
#include "common/error.h"
#include "plugin/doctor/checks.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

struct Libraries {
  std::map<std::string, fs::path> found;
  std::vector<std::string> missing;
};

// Lines of ldd: "libm.so.6 => /lib/libm.so.6 (0x…)", "libx.so => not found".
Libraries libraries_of(const fs::path& file) {
  Libraries libraries;
  std::istringstream lines(run_quickly({"ldd", file}).output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::string arrow;
    std::string path;
    words >> name >> arrow >> path;
    if (arrow != "=>") continue;
    if (path == "not") {
      libraries.missing.push_back(name);
    } else {
      libraries.found.emplace(name, path);
    }
  }
  return libraries;
}

// The library of this name, or of a name that continues it, as libx.so.1; "" if the loader does not find one.
fs::path find_library(const std::string& name) {
  std::istringstream folders(environment::get_or("LD_LIBRARY_PATH", ""));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty() && fs::exists(fs::path(folder) / name)) return fs::path(folder) / name;
  }
  std::istringstream lines(run_quickly({"/sbin/ldconfig", "-p"}).output);
  for (std::string line; std::getline(lines, line);) {
    const auto arrow = line.find(" => ");
    if (arrow != std::string::npos && line.starts_with("\t" + name)) return line.substr(arrow + 4);
  }
  return {};
}

// "libx.so.1.13" -> "1.13"; "" if the name has fewer than two numbers.
std::string version_of_name(const fs::path& library) {
  std::error_code ignored;
  const fs::path real = fs::canonical(library, ignored);
  const std::string name = (real.empty() ? library : real).filename();
  const auto begin = name.find(".so.");
  const std::string version = begin == std::string::npos ? "" : name.substr(begin + 4);
  return version.find('.') == std::string::npos ? "" : version;
}

bool has_vendor(const std::string& path) {
  static constexpr std::array kVendors{"openblas", "mkl", "blis", "atlas", "armpl", "essl", "flexiblas"};
  return std::any_of(kVendors.begin(), kVendors.end(),
                     [&](const char* vendor) { return path.find(vendor) != std::string::npos; });
}

// A library of this name that neither is nor loads a vendor's is the reference implementation.
bool is_reference_blas(const fs::path& library) {
  std::error_code ignored;
  if (has_vendor(fs::canonical(library, ignored).string())) return false;
  const Libraries loads = libraries_of(library);
  return std::none_of(loads.found.begin(), loads.found.end(), [](const auto& each) {
    return has_vendor(each.first) || has_vendor(each.second.string());
  });
}

void check_blas(const Libraries& libraries, Report& report) {
  const auto blas = libraries.found.find("libblas.so.3");
  if (blas == libraries.found.end()) return report.ok("blas", "LibTorch does not use the system's BLAS");
  if (!is_reference_blas(blas->second)) {
    return report.ok("blas", fmt::format("{} is an optimised BLAS", blas->second.string()));
  }
  report.error(
      "blas", fmt::format("LibTorch uses the reference BLAS, {}", blas->second.string()),
      "Training on CPUs is about 20 times slower with it than with OpenBLAS.",
      "apt install libopenblas0-pthread; update-alternatives --config libblas.so.3-$(uname -m)-linux-gnu");
}

void note_version(const char* id, const char* name, const fs::path& library, const std::string& version,
                  Report& report) {
  const std::string known = version.empty() ? "of unknown version" : version;
  report.ok(id, fmt::format("{} {} is {}", name, known, library.string()));
  report.versions[name] = known;
}

}  // namespace

std::string torch_version(const fs::path& library) {
  std::string version = version_of_name(library);
  if (!version.empty()) return version;
  std::error_code ignored;
  const fs::path folder = fs::canonical(library, ignored).parent_path().parent_path();
  std::ifstream archive(folder / "build-version");
  if (archive >> version) return version;
  std::ifstream wheel(folder / "version.py");
  std::smatch match;
  for (std::string line; std::getline(wheel, line);) {
    if (std::regex_search(line, match, std::regex("^__version__ = '([^']*)'"))) return match[1];
  }
  return "";
}

std::string nccl_version(const fs::path& library) {
  std::string version = version_of_name(library);
  if (!version.empty()) return version;
  const std::string text = text_in(library, "NCCL version [0-9]+[.][0-9.]+");
  return text.substr(std::min(text.size(), std::string("NCCL version ").size()));
}

void check_libraries(const fs::path& program, Report& report) {
  fs::path file = program;
  if (!program.empty() && !fs::exists(program)) {
    return report.error("program", fmt::format("{} does not exist on this node", program.string()),
                        "The job would end at once.",
                        "install the program on every node, or on a shared file system");
  }
  if (file.empty()) file = find_library("libtorch_cpu.so");
  if (file.empty())
    return report.ok("libtorch", "the system has no LibTorch; --program FILE checks a program's");
  Libraries libraries = libraries_of(file);
  if (!libraries.missing.empty()) {
    report.error(
        "program", fmt::format("{} does not find {}", file.string(), fmt::join(libraries.missing, ", ")),
        "The program ends before main().", "install the libraries on this node, or set LD_LIBRARY_PATH");
  }
  if (file.filename().string().starts_with("libtorch")) libraries.found.emplace("libtorch_cpu.so", file);
  const auto with_prefix = [&](const std::string& prefix) {
    const auto at = libraries.found.lower_bound(prefix);
    return at != libraries.found.end() && at->first.starts_with(prefix) ? at->second : fs::path();
  };
  const fs::path torch = with_prefix("libtorch_cpu.so");
  if (torch.empty()) return report.ok("libtorch", fmt::format("{} does not use LibTorch", file.string()));
  note_version("libtorch", "LibTorch", torch, torch_version(torch), report);
  fs::path nccl = with_prefix("libnccl.so");
  if (nccl.empty() && program.empty()) nccl = find_library("libnccl.so.2");
  if (!nccl.empty()) note_version("nccl", "NCCL", nccl, nccl_version(nccl), report);
  check_blas(libraries, report);
}

}  // namespace lockstep::doctor
