// Where an object store is, and with which credentials this process asks it: as other programs for
// S3 find them, in the environment and in the shared credentials file.
//
//   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, else the file
//   AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials), profile AWS_PROFILE (default)
//   AWS_REGION, AWS_DEFAULT_REGION, the profile's region, us-east-1
//   AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else the region's of AWS; AWS_CA_BUNDLE
//
// Credentials are in no message, log or error of ours. Thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_S3_SETTINGS_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_S3_SETTINGS_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::s3 {

struct S3Settings {
  std::string access_key, secret_key, session_token;
  std::string region;
  std::string endpoint;   // "https://host:port", without a '/' at its end; empty: AWS's.
  std::string ca_bundle;  // A file; empty: the system's.
};

// A variable of the environment; nullopt or "": it is not set.
using Variable = std::function<std::optional<std::string>(const char* name)>;

// Errors: FailedPrecondition  there are no credentials, saying where they were looked for
//         InvalidArgument     the endpoint is not of the form http[s]://HOST[:PORT], a credential
//                             cannot be one, or the file is no such file.
absl::StatusOr<S3Settings> ReadSettings(const Variable& variable);
// This process's.
absl::StatusOr<S3Settings> ReadSettings();

// Of "https://s3.eu-central-1.amazonaws.com" and bucket "b": the URL before "/KEY". An endpoint that
// is given has the bucket in the path, as other stores expect it.
std::string BucketUrl(const S3Settings& settings, const std::string& bucket);

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_S3_SETTINGS_H_
