// Gets random bytes from the kernel, for keys and for names that nobody can guess.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

/// Fills up to 256 bytes of memory. Throws Error if the kernel gives no random bytes.
void fill_random(void* memory, std::size_t bytes);

/// Random bytes as hexadecimal digits, two for each byte. Throws Error as fill_random() does.
std::string random_hex(std::size_t bytes);

}  // namespace lockstep
