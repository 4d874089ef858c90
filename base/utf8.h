// Text from others, made fit for a proto string and a terminal. Pure functions.
#ifndef TESSERA_BASE_UTF8_H_
#define TESSERA_BASE_UTF8_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tessera {

// `text` with each byte that is not part of a UTF-8 character, and those of each control character
// but newline and tab (of lines, of paragraphs and of writing direction too), written as "\xNN".
// What is valid stays as it is.
std::string PrintableUtf8(absl::string_view text);

bool IsUtf8(absl::string_view text);

// The longest prefix of `text` of at most `max_bytes` bytes that cuts no UTF-8 character in two.
absl::string_view Utf8Prefix(absl::string_view text, size_t max_bytes);

}  // namespace tessera

#endif  // TESSERA_BASE_UTF8_H_
