// Munge's word for which user is at the other end: a credential that carries what the conversation is about,
// can be decoded by this user only, and only once. libmunge is loaded when it is wanted, since some sites
// have none.
//
// Threads: safe from any.
#pragma once

#include <optional>
#include <string>

namespace lockstep::transfer {

/// A credential for `what`; nothing where this machine has no munge.
std::optional<std::string> munge_encode(const std::string& what);

/// Whether the credential is of this process's user, and about `what`.
bool munge_proves(const std::string& credential, const std::string& what);

}  // namespace lockstep::transfer
