// Whether samples may be taken from mappings of their files. Touching a mapping behind the end of a file that
// someone has truncated ends the process (SIGBUS), and on a network file system a server that goes away can
// do the same; a read gives an error then. So only what nobody may write to, on a file system of this node,
// is mapped unasked: what lockstep-stage has put into the node's cache, above all.
//
// Threads: safe from any.
#pragma once

#include "staging/pack/reader.h"

namespace lockstep::data {

/// Looks at the files of some of the samples. False where it cannot tell.
bool safe_to_map(const pack::Reader& reader);

}  // namespace lockstep::data
