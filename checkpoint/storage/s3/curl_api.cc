#include "checkpoint/storage/s3/curl_api.h"

#include <dlfcn.h>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::s3 {
namespace {

constexpr char kLibrary[] = "libcurl.so.4";
constexpr unsigned kFirstVersion = 0x075500;  // 7.85, which has CURLOPT_PROTOCOLS_STR.

// Its symbols are nobody else's, and it and its OpenSSL find their own before this process's: a
// Python wheel brings another OpenSSL. Sanitizers refuse the latter.
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kMode = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

absl::Status Missing(absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(
      "s3:// needs ", kLibrary, " of version 7.85 or newer (Debian's package libcurl4): ", why));
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<const CurlApi*> Load() {
  void* const library = dlopen(kLibrary, kMode);
  if (library == nullptr) return Missing(dlerror());
  auto* const api = new CurlApi();
  decltype(&::curl_version_info) version_info = nullptr;
  const bool has_all = Find(library, "curl_version_info", &version_info) &&
                       Find(library, "curl_global_init", &api->global_init) &&
                       Find(library, "curl_easy_init", &api->easy_init) &&
                       Find(library, "curl_easy_reset", &api->easy_reset) &&
                       Find(library, "curl_easy_setopt", &api->easy_setopt) &&
                       Find(library, "curl_easy_perform", &api->easy_perform) &&
                       Find(library, "curl_easy_getinfo", &api->easy_getinfo) &&
                       Find(library, "curl_easy_strerror", &api->easy_strerror) &&
                       Find(library, "curl_slist_append", &api->slist_append) &&
                       Find(library, "curl_slist_free_all", &api->slist_free_all);
  if (!has_all) return Missing("it lacks a function");
  const curl_version_info_data* const version = version_info(CURLVERSION_NOW);
  if (version->version_num < kFirstVersion)
    return Missing(absl::StrCat("this is ", version->version));
  if (api->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return Missing("it cannot be set up");
  return api;
}

}  // namespace

absl::StatusOr<const CurlApi*> LoadCurl() {
  // Never unloaded: saves may run until the process ends.
  static const auto* const loaded = new absl::StatusOr<const CurlApi*>(Load());
  return *loaded;
}

}  // namespace tessera::s3
