#include "gtest/gtest.h"
#include "tests/snippets/guide_scope.h"

namespace tessera_snippets {
namespace {

// Building this test compiles all of them against the public headers, and links them with the
// public targets.
TEST(SnippetsTest, OfTheGuidesAreFoundCompiledAndLinked) { EXPECT_GE(NumSnippets(), 24); }

}  // namespace
}  // namespace tessera_snippets
