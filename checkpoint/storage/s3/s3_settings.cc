#include "checkpoint/storage/s3/s3_settings.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tessera::s3 {
namespace {

constexpr char kDefaultRegion[] = "us-east-1";
constexpr int kMaxFileBytes = 1 << 20;

// The first of them that is set.
std::string FirstOf(const Variable& variable, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    std::string value = variable(name).value_or("");
    if (!value.empty()) return value;
  }
  return "";
}

using Section = std::map<std::string, std::string>;

// nullopt: there is no such file.
absl::StatusOr<std::optional<Section>> ReadProfile(const std::string& path,
                                                   const std::string& profile) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || file.gcount() > kMaxFileBytes)
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a file of credentials"));
  text.resize(file.gcount());
  Section found;
  bool is_in = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (absl::ConsumePrefix(&line, "[") && absl::ConsumeSuffix(&line, "]")) {
      is_in = absl::StripAsciiWhitespace(line) == profile;
      continue;
    }
    const size_t equals = line.find('=');
    if (!is_in || equals == absl::string_view::npos) continue;
    found[std::string(absl::StripAsciiWhitespace(line.substr(0, equals)))] =
        std::string(absl::StripAsciiWhitespace(line.substr(equals + 1)));
  }
  return found;
}

std::string CredentialsFile(const Variable& variable) {
  std::string path = FirstOf(variable, {"AWS_SHARED_CREDENTIALS_FILE"});
  if (!path.empty()) return path;
  const std::string home = FirstOf(variable, {"HOME"});
  return home.empty() ? "" : absl::StrCat(home, "/.aws/credentials");
}

// They become parts of headers.
absl::Status CheckText(absl::string_view what, absl::string_view text) {
  const bool is_plain =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (is_plain) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " contains a space, a line break or a byte that is not ASCII"));
}

absl::Status CheckEndpoint(absl::string_view endpoint) {
  absl::string_view host = endpoint;
  const bool has_scheme =
      absl::ConsumePrefix(&host, "http://") || absl::ConsumePrefix(&host, "https://");
  // Neither user names nor queries: a URL is made of it.
  if (has_scheme && !host.empty() && host.find_first_of("@?# \t\r\n") == absl::string_view::npos)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL is not of the form https://HOST[:PORT] or "
      "http://HOST[:PORT]");
}

absl::Status ReadCredentials(const Variable& variable, S3Settings* settings) {
  settings->access_key = FirstOf(variable, {"AWS_ACCESS_KEY_ID"});
  settings->secret_key = FirstOf(variable, {"AWS_SECRET_ACCESS_KEY"});
  settings->session_token = FirstOf(variable, {"AWS_SESSION_TOKEN"});
  // Both or none: a key and a secret of two sources do not belong together.
  const bool is_complete = !settings->access_key.empty() && !settings->secret_key.empty();
  const std::string path = CredentialsFile(variable);
  std::string profile = FirstOf(variable, {"AWS_PROFILE"});
  if (profile.empty()) profile = "default";
  std::optional<Section> section;
  if (!path.empty()) {
    ASSIGN_OR_RETURN(section, ReadProfile(path, profile));
  }
  if (section.has_value() && settings->region.empty()) settings->region = (*section)["region"];
  if (is_complete) return absl::OkStatus();
  if (section.has_value()) {
    settings->access_key = (*section)["aws_access_key_id"];
    settings->secret_key = (*section)["aws_secret_access_key"];
    settings->session_token = (*section)["aws_session_token"];
  }
  if (!settings->access_key.empty() && !settings->secret_key.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "no credentials for s3://: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
      "environment of this process, or give profile '",
      profile, "' both in ", path.empty() ? "~/.aws/credentials" : path));
}

}  // namespace

absl::StatusOr<S3Settings> ReadSettings(const Variable& variable) {
  S3Settings settings;
  settings.region = FirstOf(variable, {"AWS_REGION", "AWS_DEFAULT_REGION"});
  settings.endpoint = FirstOf(variable, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  settings.ca_bundle = FirstOf(variable, {"AWS_CA_BUNDLE"});
  RETURN_IF_ERROR(ReadCredentials(variable, &settings));
  if (settings.region.empty()) settings.region = kDefaultRegion;
  RETURN_IF_ERROR(CheckText("the region for s3://", settings.region));
  RETURN_IF_ERROR(CheckText("the access key for s3://", settings.access_key));
  RETURN_IF_ERROR(CheckText("the secret key for s3://", settings.secret_key));
  RETURN_IF_ERROR(CheckText("the session token for s3://", settings.session_token));
  if (settings.endpoint.empty()) return settings;
  RETURN_IF_ERROR(CheckEndpoint(settings.endpoint));
  while (absl::EndsWith(settings.endpoint, "/")) settings.endpoint.pop_back();
  return settings;
}

absl::StatusOr<S3Settings> ReadSettings() {
  return ReadSettings([](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  });
}

std::string BucketUrl(const S3Settings& settings, const std::string& bucket) {
  if (!settings.endpoint.empty()) return absl::StrCat(settings.endpoint, "/", bucket);
  const std::string host = absl::StrCat("s3.", settings.region, ".amazonaws.com");
  // A certificate for *.s3... covers no name with a dot.
  if (absl::StrContains(bucket, '.')) return absl::StrCat("https://", host, "/", bucket);
  return absl::StrCat("https://", bucket, ".", host);
}

}  // namespace tessera::s3
