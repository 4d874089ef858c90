#include "checkpoint/storage/s3/xml_reader.h"

#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tessera::s3 {
namespace {

absl::Status Invalid(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("XML: ", why));
}

bool IsNameByte(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return absl::ascii_isalnum(byte) || c == '_' || c == '-' || c == '.' || c == ':' || byte >= 0x80;
}

void AppendUtf8(uint32_t code, std::string* text) {
  if (code < 0x80) {
    text->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    text->push_back(static_cast<char>(0xc0 | code >> 6));
    text->push_back(static_cast<char>(0x80 | (code & 0x3f)));
  } else if (code < 0x10000) {
    text->push_back(static_cast<char>(0xe0 | code >> 12));
    text->push_back(static_cast<char>(0x80 | (code >> 6 & 0x3f)));
    text->push_back(static_cast<char>(0x80 | (code & 0x3f)));
  } else {
    text->push_back(static_cast<char>(0xf0 | code >> 18));
    text->push_back(static_cast<char>(0x80 | (code >> 12 & 0x3f)));
    text->push_back(static_cast<char>(0x80 | (code >> 6 & 0x3f)));
    text->push_back(static_cast<char>(0x80 | (code & 0x3f)));
  }
}

// "amp", "#38", "#x26": what is between '&' and ';'.
bool AppendEntity(absl::string_view entity, std::string* text) {
  if (absl::ConsumePrefix(&entity, "#")) {
    uint32_t code = 0;
    const bool is_hex = absl::ConsumePrefix(&entity, "x");
    if (entity.empty() || !absl::ascii_isxdigit(static_cast<unsigned char>(entity[0])))
      return false;
    if (is_hex ? !absl::SimpleHexAtoi(entity, &code) : !absl::SimpleAtoi(entity, &code))
      return false;
    if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    AppendUtf8(code, text);
    return true;
  }
  constexpr std::pair<absl::string_view, char> kKnown[] = {
      {"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
  for (const auto& [name, byte] : kKnown) {
    if (entity != name) continue;
    text->push_back(byte);
    return true;
  }
  return false;
}

// Recursive in the elements, of which kMaxXmlDepth may be in each other.
class Reader {
 public:
  explicit Reader(absl::string_view document) : rest_(document) {}

  absl::StatusOr<XmlElement> Run() {
    absl::ConsumePrefix(&rest_, "\xef\xbb\xbf");
    RETURN_IF_ERROR(SkipBetween());
    XmlElement root;
    RETURN_IF_ERROR(ReadElement(/*depth=*/1, &root));
    RETURN_IF_ERROR(SkipBetween());
    if (!rest_.empty()) return Invalid("something follows the document's element");
    return root;
  }

 private:
  void SkipSpace() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }

  // Consumes up to the end of `end`.
  absl::Status SkipPast(absl::string_view end) {
    const size_t at = rest_.find(end);
    if (at == absl::string_view::npos) return Invalid(absl::StrCat("'", end, "' is missing"));
    rest_.remove_prefix(at + end.size());
    return absl::OkStatus();
  }

  // Comments and instructions. `found`: whether there was one.
  absl::Status SkipOne(bool* found) {
    *found = true;
    // Not "<!DOCTYPE": entities that a document declares itself can grow without bound.
    if (absl::ConsumePrefix(&rest_, "<!--")) return SkipPast("-->");
    if (absl::ConsumePrefix(&rest_, "<?")) return SkipPast("?>");
    *found = false;
    return absl::OkStatus();
  }

  absl::Status SkipBetween() {
    for (bool found = true; found;) {
      SkipSpace();
      RETURN_IF_ERROR(SkipOne(&found));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<absl::string_view> ReadName() {
    size_t size = 0;
    while (size < rest_.size() && IsNameByte(rest_[size])) ++size;
    if (size == 0) return Invalid("a name is missing");
    const absl::string_view name = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return name;
  }

  // After the name, up to "/>" or ">". `is_empty`: the first.
  absl::Status SkipAttributes(bool* is_empty) {
    while (true) {
      SkipSpace();
      *is_empty = absl::ConsumePrefix(&rest_, "/>");
      if (*is_empty || absl::ConsumePrefix(&rest_, ">")) return absl::OkStatus();
      RETURN_IF_ERROR(ReadName().status());
      SkipSpace();
      if (!absl::ConsumePrefix(&rest_, "=")) return Invalid("an attribute has no value");
      SkipSpace();
      const char quote = rest_.empty() ? '\0' : rest_[0];
      if (quote != '"' && quote != '\'') return Invalid("an attribute's value is not quoted");
      rest_.remove_prefix(1);
      RETURN_IF_ERROR(SkipPast(absl::string_view(&quote, 1)));
    }
  }

  absl::Status ReadText(std::string* text) {
    if (!absl::ConsumePrefix(&rest_, "&")) {
      const size_t size = std::min(rest_.find_first_of("<&"), rest_.size());
      absl::StrAppend(text, rest_.substr(0, size));
      rest_.remove_prefix(size);
      return absl::OkStatus();
    }
    constexpr size_t kMaxEntityBytes = 10;
    const size_t end = rest_.substr(0, kMaxEntityBytes).find(';');
    if (end == absl::string_view::npos || !AppendEntity(rest_.substr(0, end), text))
      return Invalid("an unknown entity");
    rest_.remove_prefix(end + 1);
    return absl::OkStatus();
  }

  absl::Status ReadElement(int depth, XmlElement* element) {
    // The document comes from the network, and decides how deep this recursion goes.
    if (depth > kMaxXmlDepth) return Invalid("elements are nested too deep");
    if (++num_elements_ > kMaxXmlElements) return Invalid("too many elements");
    if (!absl::ConsumePrefix(&rest_, "<")) return Invalid("an element is missing");
    ASSIGN_OR_RETURN(const absl::string_view name, ReadName());
    // Without the prefix of a namespace, which is the store's choice.
    element->name = std::string(name.substr(name.rfind(':') + 1));
    bool is_empty = false;
    RETURN_IF_ERROR(SkipAttributes(&is_empty));
    return is_empty ? absl::OkStatus() : ReadContent(depth, name, element);
  }

  absl::Status ReadContent(int depth, absl::string_view name, XmlElement* element) {
    while (!rest_.empty()) {
      bool skipped = false;
      RETURN_IF_ERROR(SkipOne(&skipped));
      if (skipped) continue;
      if (absl::ConsumePrefix(&rest_, "</")) {
        ASSIGN_OR_RETURN(const absl::string_view closed, ReadName());
        SkipSpace();
        if (closed != name || !absl::ConsumePrefix(&rest_, ">"))
          return Invalid(absl::StrCat("'", name, "' is not closed"));
        return absl::OkStatus();
      }
      if (absl::StartsWith(rest_, "<")) {
        RETURN_IF_ERROR(ReadElement(depth + 1, &element->children.emplace_back()));
      } else {
        RETURN_IF_ERROR(ReadText(&element->text));
      }
    }
    return Invalid(absl::StrCat("ends within '", name, "'"));
  }

  absl::string_view rest_;
  int num_elements_ = 0;
};

}  // namespace

const XmlElement* XmlElement::Find(absl::string_view child) const {
  for (const XmlElement& element : children) {
    if (element.name == child) return &element;
  }
  return nullptr;
}

std::string XmlElement::TextOf(absl::string_view child) const {
  const XmlElement* const found = Find(child);
  return found == nullptr ? "" : found->text;
}

absl::StatusOr<XmlElement> ReadXml(absl::string_view document) {
  if (document.size() > kMaxXmlBytes) return Invalid("the document is too large");
  return Reader(document).Run();
}

}  // namespace tessera::s3
