#include "base/utf8.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera {
namespace {

bool Continues(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) == 0x80; }

// The bytes of the character that `text` begins with, as RFC 3629 has it; 0: it begins with none.
size_t CharacterBytes(absl::string_view text) {
  const uint8_t lead = text[0];
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xc2 && lead <= 0xdf   ? 2
                      : lead >= 0xe0 && lead <= 0xef ? 3
                      : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                     : 0;
  if (size == 0 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if (!Continues(text[i])) return 0;
  }
  // Overlong forms, surrogates, and what is past U+10FFFF.
  const uint8_t second = text[1];
  const bool refused = (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
                       (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f);
  return refused ? 0 : size;
}

// Whether it is a character that moves a terminal's cursor, ends a line for some readers, or
// changes the direction of the text after it.
bool IsControl(absl::string_view character) {
  const auto lead = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7f;
  const auto second = static_cast<uint8_t>(character[1]);
  if (character.size() == 2) return lead == 0xc2 && second < 0xa0;  // U+0080 to U+009F.
  if (character.size() != 3 || lead != 0xe2) return false;
  const auto third = static_cast<uint8_t>(character[2]);
  return (second == 0x80 && third >= 0xa8 && third <= 0xae) ||  // U+2028 to U+202E.
         (second == 0x81 && third >= 0xa6 && third <= 0xa9);    // U+2066 to U+2069.
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t size = CharacterBytes(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string PrintableUtf8(absl::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const size_t size = CharacterBytes(text);
    const absl::string_view part = text.substr(0, std::max<size_t>(size, 1));
    if (size == 0 || IsControl(part)) {
      // Byte by byte, so that nothing of it reaches a terminal.
      for (const char byte : part)
        absl::StrAppend(&printable, absl::StrFormat("\\x%02x", static_cast<uint8_t>(byte)));
    } else {
      absl::StrAppend(&printable, part);
    }
    text.remove_prefix(part.size());
  }
  return printable;
}

absl::string_view Utf8Prefix(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t cut = max_bytes;
  // A character has at most 3 bytes after its first; more of them are none of a character's.
  for (size_t back = 0; back < 3 && cut > 0 && Continues(text[cut]); ++back) --cut;
  // These bytes are not a character: cut at the limit.
  if (Continues(text[cut])) cut = max_bytes;
  return text.substr(0, cut);
}

}  // namespace tessera
