// Proves by munge which user is at the other end of a connection. A credential carries a text; only the same
// user can decode it, and only once. libmunge is loaded at run time, because some sites do not have it.
//
// Threads: safe from any.
#pragma once

#include <optional>
#include <string>

namespace lockstep::transfer {

/// A credential for `text`; nullopt if this machine has no munge.
std::optional<std::string> munge_encode(const std::string& text);

/// Whether the credential is of this process's user, and for `text`.
bool munge_verify(const std::string& credential, const std::string& text);

}  // namespace lockstep::transfer
