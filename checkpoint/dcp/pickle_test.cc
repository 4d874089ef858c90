#include "checkpoint/dcp/pickle.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/dcp/pickle_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::dcp {
namespace {

using namespace pickle_writer;  // NOLINT
using testing::HasSubstr;

constexpr absl::string_view kGlobals[] = {"torch Size", "torch float32"};

absl::StatusOr<Pickle> Decode(absl::string_view bytes) {
  return Pickle::Decode(bytes, kGlobals, /*persistent_ids=*/false);
}

TEST(PickleTest, PlainDataIsReadAsItIs) {
  const std::string bytes = Pickled(
      Dict({{Str("size"), Call(Global("torch", "Size"), {Tuple({Int(7), Int(-3)})})},
            {Str("list"), List({None(), "\x88", "\x89", "K\xff", "M\xff\xff", "J\xff\xff\xff\xff",
                                std::string("G\xbf\xe8\0\0\0\0\0\0", 9)})},
            {Str("bytes"), "C\x02xy"}}));
  ASSERT_OK_AND_ASSIGN(const Pickle pickle, Decode(bytes));
  const Pickle::Ref root = pickle.root();
  ASSERT_EQ(root.kind(), PickleKind::kDict);
  ASSERT_EQ(root.size(), 6);
  EXPECT_EQ(root.item(0).text(), "size");
  ASSERT_TRUE(root.item(1).IsObject("torch Size"));
  EXPECT_EQ(root.item(1).item(1).item(0).item(0).number(), 7);
  EXPECT_EQ(root.item(1).item(1).item(0).item(1).number(), -3);
  const Pickle::Ref list = root.item(3);
  EXPECT_EQ(list.item(0).kind(), PickleKind::kNone);
  EXPECT_EQ(list.item(1).number(), 1);
  EXPECT_EQ(list.item(2).number(), 0);
  EXPECT_EQ(list.item(3).number(), 255);
  EXPECT_EQ(list.item(4).number(), 65535);
  EXPECT_EQ(list.item(5).number(), -1);
  EXPECT_EQ(list.item(6).real(), -0.75);
  EXPECT_EQ(root.item(5).text(), "xy");
}

TEST(PickleTest, RememberedValuesAreShared) {
  const std::string bytes = Pickled("(" + Str("x") + "\x94h" + Word(0, 1) + "t");
  ASSERT_OK_AND_ASSIGN(const Pickle pickle, Decode(bytes));  // Texts are views of it.
  EXPECT_EQ(pickle.root().item(0).text(), "x");
  EXPECT_EQ(pickle.root().item(1).text(), "x");
}

// What Python would run to load it: each is refused as soon as it is named.
TEST(PickleTest, NamesOfFunctionsThatAreNotOfTheFormatAreRefusedByName) {
  const struct {
    std::string pickle, name;
  } kCases[] = {
      {Pickled(Call(Global("os", "system"), {Str("true")})), "'os.system'"},
      {Pickled(Call(Global("builtins", "eval"), {Str("1")})), "'builtins.eval'"},
      {Pickled(Global("torch", "load")), "'torch.load'"},
      {Pickled(Global("torch ", "Size")), "'torch .Size'"},
      {Pickled(Global("torch Size", "")), "'torch Size.'"},
      {Pickled(Str("posix") + Str("system") + "\x93"), "'posix.system'"},
      {Pickled(Global("a\x01", "b")), "'a\\001.b'"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(Decode(c.pickle), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.name)));
  }
}

TEST(PickleTest, OpcodesThatPlainDataDoesNotNeedAreRefused) {
  const struct {
    std::string pickle, message;
  } kCases[] = {
      {Pickled("(S'true'\nios\nsystem\n"), "opcode 0x53"},  // STRING, INST
      {Pickled("(i"), "opcode 0x69"},                       // INST
      {Pickled("(o"), "opcode 0x6f"},                       // OBJ
      {Pickled("\x82\x01"), "opcode 0x82"},                 // EXT1
      {Pickled(")}\x92"), "opcode 0x92"},                   // NEWOBJ_EX
      {Pickled("\x97"), "opcode 0x97"},                     // NEXT_BUFFER
      {Pickled(Int(1) + "Q"), "a persistent id"},           // BINPERSID
      {Pickled(Str("x") + Tuple({}) + "R"), "something that is not a global"},
      {Pickled(Global("torch", "Size") + Int(1) + "R"), "something that is not a global"},
      {Pickled(Tuple({}) + Dict({}) + "b"), "something that is not an object"},
      {Pickled(Object(Global("torch", "Size"), None()) + "Nb"), "or that has one"},
      {Pickled(Tuple({}) + Int(1) + "a"), "not a list or dict"},
      {Pickled("}(" + Int(1) + "u"), "a key without a value"},
      {Pickled("\x8a\x09" + Word(0, 9)), "more than 64 bits"},
      {Pickled("h\x05"), "not remembered"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(Decode(c.pickle),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)))
        << testing::PrintToString(c.pickle);
  }
}

TEST(PickleTest, DamagedPicklesAreRefused) {
  const std::string cases[] = {"",
                               ".",
                               "\x80",
                               "\x80\x02",
                               Pickled("t"),
                               Pickled("e"),
                               Pickled("\x85"),
                               Pickled("(N"),
                               Pickled("NN"),
                               Pickled("R"),
                               Pickled("b"),
                               Pickled("q"),
                               Pickled("\x94"),
                               Pickled("(\x85"),
                               Pickled("X\xff\xff\xff\xffx"),
                               Pickled("\x8d" + Word(~uint64_t{0}, 8)),
                               Pickled("cos"),
                               Pickled("N") + ".",
                               "\x80\x04\x95\x01",
                               Pickled("](NNe\x85(e")};
  for (const std::string& bytes : cases) {
    EXPECT_THAT(Decode(bytes), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("pickle")))
        << testing::PrintToString(bytes);
  }
}

// Neither recursion nor memory beyond the pickle's size.
TEST(PickleTest, DeepAndCircularValuesAreOnlyData) {
  std::string deep;
  for (int i = 0; i < 1000000; ++i) deep += "]";
  for (int i = 0; i < 999999; ++i) deep += "a";
  EXPECT_OK(Decode(Pickled(deep)).status());
  ASSERT_OK_AND_ASSIGN(const Pickle circular, Decode(Pickled("]q\x01h\x01"
                                                             "a")));
  EXPECT_EQ(circular.root().item(0).item(0).item(0).kind(), PickleKind::kList);
}

TEST(PickleTest, MoreValuesThanMayBeAreRefused) {
  const std::string nones = Pickled("(" + std::string(100, 'N') + "t");
  EXPECT_OK(Pickle::Decode(nones, kGlobals, false, /*max_values=*/101).status());
  for (const std::string& bytes : {nones, std::string(200, '('), "]" + std::string(200, '\x94')}) {
    EXPECT_THAT(Pickle::Decode(bytes, kGlobals, false, /*max_values=*/99),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too many values")));
  }
}

TEST(PickleTest, RandomOpcodesAreReadWithoutHarm) {
  const int seed = 24;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::string opcodes =
      "(.JKMNQRXGBCabcehj]qrstu})\x80\x81\x85\x86\x87\x88\x89\x8a\x8c\x93\x94";
  int num_ok = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string bytes;
    const int length = 1 + static_cast<int>(random() % 24);
    for (int j = 0; j < length; ++j) {
      bytes +=
          random() % 4 == 0 ? static_cast<char>(random() % 8) : opcodes[random() % opcodes.size()];
    }
    num_ok += Decode(bytes + ".").ok() ? 1 : 0;
  }
  EXPECT_GT(num_ok, 100);
}

}  // namespace
}  // namespace tessera::dcp
