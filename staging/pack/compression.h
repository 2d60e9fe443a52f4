// Recognises compressed files, for error messages: no compressed file can be read.
//
// Threads: safe from any.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::pack {

/// "gzip", "zstd", "xz", "bzip2" or "lz4", judged by a file's first bytes; "" if they show none.
std::string_view compression_of(std::string_view first_bytes);

/// Whether they may be those of zlib, which other files can have too.
bool may_be_zlib(std::string_view first_bytes);

/// A file's name without the ending of compressed files, in any case: "x.tar" of "x.tar.GZ".
std::string_view unpacked_name(std::string_view name);

/// "unpack it (gzip -dc FILE > NEW)"
std::string how_to_unpack(std::string_view compression, std::string_view file = "FILE",
                          std::string_view into = "NEW");

}  // namespace lockstep::pack
