#include "net/test_certificates.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<TestCertificates>> TestCertificates::Make() {
  if (system("openssl version > /dev/null 2>&1") != 0) {
    return absl::NotFoundError("the openssl command is missing");
  }
  std::string folder = "/tmp/tessera-tls-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return ErrnoStatus(errno, "make a folder in /tmp");
  std::unique_ptr<TestCertificates> made(new TestCertificates(folder));
  const std::string script = absl::StrCat(
      "exec 2> /dev/null; cd ", folder,
      " && key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'"
      " && for ca in ca other; do"
      "   openssl req -x509 $key -days 2 -keyout $ca.key -out $ca.pem -subj /CN=$ca || exit 1; done"
      " && echo subjectAltName=IP:127.0.0.1 > names"
      " && subject() { case $1 in worker) echo tessera:worker:node;; operator) echo "
      "tessera:operator;; reader) echo tessera:reader;; *) echo $1;; esac; }"
      " && for who in server:ca client:ca other-client:ca worker:ca operator:ca reader:ca "
      "stranger:other; do name=${who%:*}; ca=${who#*:};"
      "   openssl req $key -keyout $name.key -out $name.csr -subj /CN=$(subject $name)"
      "   && openssl x509 -req -in $name.csr -CA $ca.pem -CAkey $ca.key -CAcreateserial -days 2"
      "     -extfile names -out $name.pem || exit 1; done");
  if (system(script.c_str()) != 0) return absl::InternalError("openssl made no certificates");
  return made;
}

TestCertificates::~TestCertificates() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace tessera
