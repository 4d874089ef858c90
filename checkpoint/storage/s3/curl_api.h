// libcurl, loaded when the first path in an object store is used: a program that uses none has
// neither it nor the libraries that it needs (docs/adr/0081). Thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_CURL_API_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_CURL_API_H_

// Its macros would put the functions' own names in place of the pointers.
#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#undef curl_easy_setopt
#undef curl_easy_getinfo

#include "absl/status/statusor.h"

namespace tessera::s3 {

struct CurlApi {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_reset) easy_reset;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_perform) easy_perform;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;
};

// There until the process ends; its global state is set up once.
// Errors: FailedPrecondition  there is no libcurl, or an older one than 7.85.
absl::StatusOr<const CurlApi*> LoadCurl();

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_CURL_API_H_
