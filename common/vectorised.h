// LOCKSTEP_VECTORISED before a function compiles it for several generations of vector units; the best one that
// the processor has is chosen when the program is loaded. Everything the function calls is inlined. Sanitizers
// are not ready yet at that time, so there it does nothing.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define LOCKSTEP_VECTORISED [[gnu::target_clones("default", "avx2", "avx512f"), gnu::flatten]]
#else
#define LOCKSTEP_VECTORISED
#endif
