#include "client/torch/torch_status.h"

#include <cstdlib>
#include <string>
#include <typeinfo>

#include "absl/strings/str_cat.h"

namespace tessera {

absl::Status OtherExceptionStatus() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  std::string name = type == nullptr ? "unknown" : type->name();
  int failed = 0;
  if (char* const plain = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &failed)) {
    name = plain;
    // The demangler allocates with malloc.
    std::free(plain);
  }
  return absl::UnknownError(
      absl::StrCat("an exception of type '", name, "', which is not a std::exception"));
}

}  // namespace tessera
