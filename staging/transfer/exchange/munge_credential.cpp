#include "staging/transfer/exchange/munge_credential.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

namespace lockstep::transfer {
namespace {

// As in munge.h, which sites without munge do not have. Unchanged since version 0.5.
using Context = void*;
constexpr int kSuccess = 0;
constexpr int kOptionUidRestriction = 9;

struct Library {
  Context (*ctx_create)() = nullptr;
  void (*ctx_destroy)(Context) = nullptr;
  int (*ctx_set)(Context, int, ...) = nullptr;
  int (*encode)(char**, Context, const void*, int) = nullptr;
  int (*decode)(const char*, Context, void**, int*, uid_t*, gid_t*) = nullptr;

  Library() {
    void* const handle = ::dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return;
    load(handle, "munge_ctx_create", ctx_create);
    load(handle, "munge_ctx_destroy", ctx_destroy);
    load(handle, "munge_ctx_set", ctx_set);
    load(handle, "munge_encode", encode);
    load(handle, "munge_decode", decode);
  }
  template <typename Function>
  static void load(void* handle, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
  }
  bool good() const {
    return ctx_create != nullptr && ctx_destroy != nullptr && ctx_set != nullptr && encode != nullptr &&
           decode != nullptr;
  }
};

const Library& library() {
  static const Library instance;
  return instance;
}

}  // namespace

std::optional<std::string> munge_encode(const std::string& text) {
  if (!library().good()) return {};
  Context context = library().ctx_create();
  if (context == nullptr) return {};
  library().ctx_set(context, kOptionUidRestriction, static_cast<int>(::geteuid()));
  char* credential = nullptr;
  const int error = library().encode(&credential, context, text.data(), static_cast<int>(text.size()));
  library().ctx_destroy(context);
  std::optional<std::string> encoded;
  if (error == kSuccess && credential != nullptr) encoded = credential;
  std::free(credential);
  return encoded;
}

bool munge_verify(const std::string& credential, const std::string& text) {
  if (!library().good()) return false;
  void* payload = nullptr;
  int length = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  const int error = library().decode(credential.c_str(), nullptr, &payload, &length, &uid, &gid);
  const bool good = error == kSuccess && payload != nullptr && uid == ::geteuid() &&
                    std::string(static_cast<const char*>(payload), static_cast<std::size_t>(length)) == text;
  std::free(payload);
  return good;
}

}  // namespace lockstep::transfer
