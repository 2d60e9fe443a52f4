#include "runtime/comm/process_settings.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "common/environment.h"
#include "common/launcher.h"
#include "common/leaf/cpu_list.h"

namespace lockstep::comm {
namespace {

template <typename Function>
Function* find_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

cpu_set_t to_set(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<unsigned>(cpu), &set);
  return set;
}

}  // namespace

Cpus find_cpus() {
  Cpus cpus;
  if (const auto list = environment::get("LOCKSTEP_CPUS")) {
    cpus.compute = parse_cpu_list(*list);
    cpus.assigned = !cpus.compute.empty();
  }
  if (!cpus.assigned) cpus.compute = cpus_of_this_thread();
  cpus.all = cpus.compute;
  const auto workers = worker_cpus();
  cpus.all.insert(cpus.all.end(), workers.begin(), workers.end());
  std::sort(cpus.all.begin(), cpus.all.end());
  cpus.all.erase(std::unique(cpus.all.begin(), cpus.all.end()), cpus.all.end());
  return cpus;
}

void bind_threads(const Cpus& cpus) {
  if (!cpus.assigned) return;
  const auto mine = cpus_of_this_thread();
  const bool bound = environment::get("OMP_PROC_BIND") &&
                     std::includes(cpus.compute.begin(), cpus.compute.end(), mine.begin(), mine.end());
  const cpu_set_t set = to_set(cpus.compute);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string name = entry.path().filename();
    pid_t thread = 0;
    std::from_chars(name.data(), name.data() + name.size(), thread);
    if (bound && thread == getpid()) continue;
    // The thread may have ended. If the kernel refuses the mask, bind_this_thread() below reports it.
    sched_setaffinity(thread, sizeof set, &set);
  }
  if (!bound) bind_this_thread(cpus.compute);
}

bool keep_heap() {
  if (!environment::is_on("LOCKSTEP_MALLOC", true)) return false;
  // A block from mmap is returned when it is freed, and glibc's largest threshold for such blocks is 32 MiB.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
  return true;
}

void flush_denormals() {
  at::globalContext().setFlushDenormal(true);
}

std::optional<std::string> too_many_threads(int threads, int share_of_cpus) {
  if (threads <= share_of_cpus) return std::nullopt;
  return fmt::format("{} threads have {} CPU{} and wait for each other: set OMP_NUM_THREADS to at most {}",
                     threads, share_of_cpus, share_of_cpus == 1 ? "" : "s", share_of_cpus);
}

std::string bfloat16_unit(std::string_view cpuinfo) {
  const auto begin = cpuinfo.find("flags");
  if (begin == std::string_view::npos) return "";
  const std::string flags = std::string(cpuinfo.substr(begin, cpuinfo.find('\n', begin) - begin)) + ' ';
  if (flags.find(" amx_bf16 ") != std::string::npos) return "AMX";
  return flags.find(" avx512_bf16 ") != std::string::npos ? "AVX512-BF16" : "";
}

int choose_threads(int share_of_cpus) {
  if (const auto chosen = environment::get("OMP_NUM_THREADS")) {
    // "4,2" sets nested levels too; the outermost counts. OpenMP itself warns about invalid values.
    int threads = 0;
    std::from_chars(chosen->data(), chosen->data() + chosen->size(), threads);
    if (threads > 0) return threads;
  }
  return share_of_cpus;
}

void set_threads(int threads) {
  at::set_num_threads(threads);
  if (auto* set = find_function<void(int)>("openblas_set_num_threads")) set(threads);
}

void set_interop_threads(int threads) {
  try {
    at::set_num_interop_threads(threads);
  } catch (const c10::Error&) {  // can be set only once, before their first use
  }
}

Blas find_blas() {
  if (auto* config = find_function<char*()>("openblas_get_config")) {
    const std::string text = config();  // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH …"
    return {.name = text.substr(0, text.find(' ', text.find(' ') + 1))};
  }
  if (find_function<void()>("bli_info_get_version_str") != nullptr) return {.name = "BLIS"};
  if (at::hasMKL()) return {.name = "MKL"};
  void* gemm = dlsym(RTLD_DEFAULT, "sgemm_");
  Dl_info where{};
  if (gemm == nullptr || dladdr(gemm, &where) == 0) return {.name = "BLAS built into LibTorch"};
  std::error_code ignored;
  const auto file = std::filesystem::canonical(where.dli_fname, ignored);
  const std::string path = file.empty() ? std::string(where.dli_fname) : file.string();
  // A library with this name and without the symbols of a vendor is the reference implementation.
  const bool reference = std::filesystem::path(path).filename().string().starts_with("libblas.") &&
                         dlsym(RTLD_DEFAULT, "atlas_buildinfo") == nullptr;
  return {.name = reference ? "reference BLAS (" + path + ")" : path, .slow = reference};
}

}  // namespace lockstep::comm
