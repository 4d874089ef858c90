#include "client/cli/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::cli {
namespace {

template <typename T, void (*Free)(T*)>
struct Freer {
  void operator()(T* value) const { Free(value); }
};
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY, EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509, X509_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, Freer<X509_EXTENSION, X509_EXTENSION_free>>;
using Bio = std::unique_ptr<BIO, Freer<BIO, BIO_free_all>>;

absl::Status OpenSslError(absl::string_view what) {
  char text[256] = "no reason";
  if (const unsigned long error = ERR_get_error(); error != 0)  // NOLINT(runtime/int): its type.
    ERR_error_string_n(error, text, sizeof(text));
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL: ", what, ": ", text));
}

std::string ContentOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);  // NOLINT(runtime/int): its type.
  return std::string(data, size);
}

absl::StatusOr<KeyAndCertificate> Encode(EVP_PKEY* key, X509* certificate) {
  const Bio of_key(BIO_new(BIO_s_mem())), of_certificate(BIO_new(BIO_s_mem()));
  if (of_key == nullptr || of_certificate == nullptr ||
      PEM_write_bio_PrivateKey(of_key.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1 ||
      PEM_write_bio_X509(of_certificate.get(), certificate) != 1) {
    return OpenSslError("write PEM");
  }
  return KeyAndCertificate{ContentOf(of_key.get()), ContentOf(of_certificate.get())};
}

absl::Status Add(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1)
    return OpenSslError(absl::StrCat("extension '", value, "'"));
  return absl::OkStatus();
}

// With everything but extensions and the signature.
absl::StatusOr<Certificate> Blank(EVP_PKEY* key, const std::string& common_name,
                                  absl::Duration valid_for) {
  Certificate made(X509_new());
  uint64_t serial = 0;
  // Of 63 random bits: positive, and no two of an authority are the same.
  if (made == nullptr || RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) != 1)
    return OpenSslError("make a certificate");
  serial >>= 1;
  X509_NAME* const name = X509_get_subject_name(made.get());
  // Valid since a day ago, for hosts whose clocks are slow.
  const int64_t seconds = absl::ToInt64Seconds(valid_for);
  if (X509_set_version(made.get(), X509_VERSION_3) != 1 ||
      ASN1_INTEGER_set_uint64(X509_get_serialNumber(made.get()), serial) != 1 ||
      X509_gmtime_adj(X509_getm_notBefore(made.get()), -24 * 3600) == nullptr ||
      X509_gmtime_adj(X509_getm_notAfter(made.get()), seconds) == nullptr ||
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(common_name.data()),
                                 static_cast<int>(common_name.size()), -1, 0) != 1 ||
      X509_set_pubkey(made.get(), key) != 1) {
    return OpenSslError(absl::StrCat("make a certificate for '", common_name, "'"));
  }
  return made;
}

absl::StatusOr<Key> NewKey() {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("make a key");
  return key;
}

// "DNS:node1,IP:10.0.0.1".
absl::StatusOr<std::string> AlternativeNames(const std::vector<std::string>& hosts) {
  std::string names;
  for (const std::string& host : hosts) {
    ASN1_OCTET_STRING* const address = a2i_IPADDRESS(host.c_str());
    // A host's name is no address, and leaves an error that a later failure would report.
    ERR_clear_error();
    const bool is_name =
        !host.empty() && host.size() <= 253 && std::all_of(host.begin(), host.end(), [](char c) {
          return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' || c == '*';
        });
    // Anything else could say more than a host to OpenSSL.
    if (address == nullptr && !is_name) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", absl::CHexEscape(host.substr(0, 80)), "' is no host or IP address"));
    }
    absl::StrAppend(&names, names.empty() ? "" : ",", address != nullptr ? "IP:" : "DNS:", host);
    ASN1_OCTET_STRING_free(address);
  }
  return names;
}

}  // namespace

absl::StatusOr<KeyAndCertificate> MakeAuthority(absl::Duration valid_for) {
  ASSIGN_OR_RETURN(const Key key, NewKey());
  ASSIGN_OR_RETURN(const Certificate made, Blank(key.get(), "tessera-ca", valid_for));
  X509* const certificate = made.get();
  RETURN_IF_ERROR(Add(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE"));
  RETURN_IF_ERROR(Add(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign"));
  // What the certificates' authority key identifiers refer to.
  RETURN_IF_ERROR(Add(certificate, certificate, NID_subject_key_identifier, "hash"));
  if (X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) != 1 ||
      X509_sign(certificate, key.get(), EVP_sha256()) <= 0) {
    return OpenSslError("sign the authority's certificate");
  }
  return Encode(key.get(), certificate);
}

absl::StatusOr<KeyAndCertificate> MakeCertificate(const KeyAndCertificate& authority,
                                                  const CertificateRequest& request) {
  constexpr size_t kMaxCommonName = 64;  // Of X.509.
  if (request.common_name.empty() || request.common_name.size() > kMaxCommonName) {
    return absl::InvalidArgumentError(
        absl::StrCat("name '", absl::CHexEscape(request.common_name.substr(0, 80)),
                     "': a certificate's has 1 to ", kMaxCommonName, " bytes"));
  }
  ASSIGN_OR_RETURN(const std::string names, AlternativeNames(request.hosts));
  const Bio of_key(BIO_new_mem_buf(authority.key.data(), static_cast<int>(authority.key.size())));
  const Bio of_certificate(BIO_new_mem_buf(authority.certificate.data(),
                                           static_cast<int>(authority.certificate.size())));
  const Key signer(PEM_read_bio_PrivateKey(of_key.get(), nullptr, nullptr, nullptr));
  const Certificate issuer(PEM_read_bio_X509(of_certificate.get(), nullptr, nullptr, nullptr));
  if (signer == nullptr || issuer == nullptr ||
      X509_check_private_key(issuer.get(), signer.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        "the authority's key and certificate cannot be read, or do not belong together");
  }
  ASSIGN_OR_RETURN(const Key key, NewKey());
  ASSIGN_OR_RETURN(const Certificate made,
                   Blank(key.get(), request.common_name, request.valid_for));
  X509* const certificate = made.get();
  RETURN_IF_ERROR(Add(certificate, issuer.get(), NID_basic_constraints, "critical,CA:FALSE"));
  RETURN_IF_ERROR(Add(certificate, issuer.get(), NID_key_usage, "critical,digitalSignature"));
  RETURN_IF_ERROR(Add(certificate, issuer.get(), NID_ext_key_usage,
                      request.may_serve ? "serverAuth,clientAuth" : "clientAuth"));
  RETURN_IF_ERROR(Add(certificate, issuer.get(), NID_authority_key_identifier, "keyid"));
  if (!names.empty()) RETURN_IF_ERROR(Add(certificate, issuer.get(), NID_subject_alt_name, names));
  if (X509_set_issuer_name(certificate, X509_get_subject_name(issuer.get())) != 1 ||
      X509_sign(certificate, signer.get(), EVP_sha256()) <= 0) {
    return OpenSslError(absl::StrCat("sign the certificate of '", request.common_name, "'"));
  }
  return Encode(key.get(), certificate);
}

}  // namespace tessera::cli
