#include "checkpoint/storage/s3/xml_reader.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::s3 {
namespace {

using testing::HasSubstr;

TEST(XmlReaderTest, ElementsAreFoundByNameAndTheirTextIsDecoded) {
  ASSERT_OK_AND_ASSIGN(
      const XmlElement root,
      ReadXml("\xef\xbb\xbf<?xml version=\"1.0\"?>\n<!-- <Key>no</Key> -->\n"
              "<s3:List xmlns:s3='http://x/' a = \"<&>\">"
              "<Contents><Key>a&amp;b &lt;&gt;&quot;&apos; &#65;&#x20ac;&#x1F600;</Key></Contents>"
              "<Empty/><Contents><Key >second</Key ><!-- - --></Contents></s3:List>\n"));
  EXPECT_EQ(root.name, "List");
  ASSERT_EQ(root.children.size(), 3);
  EXPECT_EQ(root.children[0].TextOf("Key"), "a&b <>\"' A\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(root.children[2].TextOf("Key"), "second");
  EXPECT_EQ(root.TextOf("Empty"), "");
  EXPECT_EQ(root.TextOf("Missing"), "");
}

TEST(XmlReaderTest, WhatIsNoSuchDocumentIsRefused) {
  for (const char* text : {"",
                           "text",
                           "<",
                           "<a",
                           "<a>",
                           "<a></b>",
                           "<a><b></a></b>",
                           "<a></a><b/>",
                           "<a></a>x",
                           "<a b></a>",
                           "<a b=c></a>",
                           "<a b='></a>",
                           "<a>&nbsp;</a>",
                           "<a>&#;</a>",
                           "<a>&#x;</a>",
                           "<a>&#0;</a>",
                           "<a>&#xD800;</a>",
                           "<a>&#x110000;</a>",
                           "<a>&#99999999999;</a>",
                           "<a>&#-1;</a>",
                           "<a>&amp</a>",
                           "<a>&",
                           "<!-- <a/>",
                           "<?xml <a/>",
                           "<a><!-- </a>",
                           "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
                           "<a><![CDATA[x]]></a>",
                           "< a></a>",
                           "</a>",
                           "<a/ >"}) {
    EXPECT_THAT(ReadXml(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("XML: ")))
        << text;
  }
  EXPECT_FALSE(ReadXml(absl::string_view("<a>\0</a", 7)).ok());
}

TEST(XmlReaderTest, DepthNumberAndSizeAreBounded) {
  std::string deep, wide = "<a>";
  for (int i = 0; i < 100'000; ++i) absl::StrAppend(&deep, "<a>");
  EXPECT_THAT(ReadXml(deep),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nested too deep")));
  for (int i = 0; i < kMaxXmlElements; ++i) absl::StrAppend(&wide, "<b/>");
  absl::StrAppend(&wide, "</a>");
  EXPECT_THAT(ReadXml(wide),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too many elements")));
  EXPECT_THAT(ReadXml(std::string(kMaxXmlBytes + 1, ' ')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too large")));
}

TEST(XmlReaderTest, EveryPrefixOfADocumentIsRefusedAndNoneIsReadBeyondItsEnd) {
  const std::string text = "<?xml version='1.0'?><a x=\"1\"><b>&amp;&#x41;</b><!-- c --><c/></a>";
  for (size_t size = 0; size < text.size(); ++size) {
    const std::string prefix = text.substr(0, size);  // Of its own, for sanitizers.
    EXPECT_FALSE(ReadXml(prefix).ok()) << prefix;
  }
  EXPECT_OK(ReadXml(text));
}

}  // namespace
}  // namespace tessera::s3
