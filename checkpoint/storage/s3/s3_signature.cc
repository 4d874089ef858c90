#include "checkpoint/storage/s3/s3_signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera::s3 {
namespace {

constexpr char kAlgorithm[] = "AWS4-HMAC-SHA256";

std::string Hmac(absl::string_view key, absl::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, &size);
  return std::string(reinterpret_cast<const char*>(digest), size);
}

struct UrlParts {
  std::string host, path, query;
};

UrlParts PartsOf(absl::string_view url) {
  url.remove_prefix(url.find("://") + 3);
  const size_t slash = std::min(url.find('/'), url.size());
  const absl::string_view rest = url.substr(slash);
  const size_t mark = std::min(rest.find('?'), rest.size());
  return {std::string(url.substr(0, slash)), mark == 0 ? "/" : std::string(rest.substr(0, mark)),
          mark < rest.size() ? std::string(rest.substr(mark + 1)) : ""};
}

}  // namespace

std::string Sha256Hex(absl::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

std::vector<std::string> SignHeaders(const SignedRequest& request, const S3Settings& settings,
                                     absl::Time now) {
  const UrlParts url = PartsOf(request.url);
  const std::string body_sum = Sha256Hex(request.body);
  const std::string time = absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone());
  const std::string date = time.substr(0, 8);
  std::vector<std::string> headers = request.headers;
  headers.push_back(absl::StrCat("host: ", url.host));
  headers.push_back(absl::StrCat("x-amz-content-sha256: ", body_sum));
  headers.push_back(absl::StrCat("x-amz-date: ", time));
  if (!settings.session_token.empty())
    headers.push_back(absl::StrCat("x-amz-security-token: ", settings.session_token));
  std::map<std::string, std::string> sorted;
  for (const std::string& header : headers) {
    const size_t colon = header.find(':');
    sorted[header.substr(0, colon)] =
        std::string(absl::StripAsciiWhitespace(header.substr(colon + 1)));
  }
  std::string canonical, names;
  // The store makes the same text, so the order and each space count.
  for (const auto& [name, value] : sorted) {
    absl::StrAppend(&canonical, name, ":", value, "\n");
    absl::StrAppend(&names, names.empty() ? "" : ";", name);
  }
  const std::string asked = absl::StrCat(request.method, "\n", url.path, "\n", url.query, "\n",
                                         canonical, "\n", names, "\n", body_sum);
  const std::string scope = absl::StrCat(date, "/", settings.region, "/s3/aws4_request");
  const std::string to_sign =
      absl::StrCat(kAlgorithm, "\n", time, "\n", scope, "\n", Sha256Hex(asked));
  std::string key = absl::StrCat("AWS4", settings.secret_key);
  for (const std::string& part :
       {date, settings.region, std::string("s3"), std::string("aws4_request")})
    key = Hmac(key, part);
  headers.push_back(absl::StrCat("authorization: ", kAlgorithm, " Credential=", settings.access_key,
                                 "/", scope, ", SignedHeaders=", names,
                                 ", Signature=", absl::BytesToHexString(Hmac(key, to_sign))));
  return headers;
}

}  // namespace tessera::s3
