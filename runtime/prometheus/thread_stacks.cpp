// Debian 12's civetweb, the web server of prometheus-cpp's Exposer, gives its threads 100 KiB of stack. Into that, glibc also
// puts the thread-local variables of all libraries that the program loads at its start: with LibTorch 106 KiB (OpenBLAS 60,
// glog 30, LibTorch 10), so no thread starts and no Exposer works. This function takes the place of glibc's in the whole
// program (the linker options of lockstep::prometheus export it).
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>

extern "C" [[gnu::visibility("default")]] int pthread_attr_setstacksize(pthread_attr_t* attributes,
                                                                        std::size_t bytes) noexcept {
  using Function = int (*)(pthread_attr_t*, std::size_t);
  static const auto glibc = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "pthread_attr_setstacksize"));
  constexpr std::size_t kEnough = 512 << 10;
  return glibc(attributes, std::max(bytes, kEnough));
}
