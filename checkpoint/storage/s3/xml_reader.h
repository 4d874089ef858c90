// Reads the small XML documents that an object store answers with: elements by name, and their text.
//
// What a store sends is untrusted. Document types, and with them entities of a document's own, are
// refused; attributes, comments and prefixes of names are skipped; size, depth and number of
// elements are bounded. Pure; thread-safe.
#ifndef TESSERA_CHECKPOINT_STORAGE_S3_XML_READER_H_
#define TESSERA_CHECKPOINT_STORAGE_S3_XML_READER_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::s3 {

struct XmlElement {
  std::string name;  // Without its prefix.
  std::string text;  // What is directly in it, decoded.
  std::vector<XmlElement> children;

  // The first of that name; null: none is.
  const XmlElement* Find(absl::string_view child) const;
  // Its text; "" without one.
  std::string TextOf(absl::string_view child) const;
};

inline constexpr size_t kMaxXmlBytes = 8 << 20;
inline constexpr int kMaxXmlDepth = 16, kMaxXmlElements = 50'000;

// The document's element. Errors: InvalidArgument  not such a document, or beyond a bound.
absl::StatusOr<XmlElement> ReadXml(absl::string_view document);

}  // namespace tessera::s3

#endif  // TESSERA_CHECKPOINT_STORAGE_S3_XML_READER_H_
