#include "layout/element_type.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(ElementTypeTest, ADTypeIsOneAndEightBitsAreAnother) {
  for (const DType dtype :
       {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp64, DType::kInt64, DType::kInt32}) {
    const ElementType type = dtype;
    EXPECT_FALSE(type.is_fp8());
    EXPECT_EQ(type.dtype(), dtype);
    EXPECT_EQ(type.number(), static_cast<int>(dtype));
    EXPECT_EQ(SizeBytes(type), SizeBytes(dtype));
    EXPECT_EQ(Name(type), Name(dtype));
    EXPECT_EQ(IsFloatingPoint(type), IsFloatingPoint(dtype));
    EXPECT_NE(type, Fp8Format::kE4M3);
  }
  for (const Fp8Format format : {Fp8Format::kE4M3, Fp8Format::kE5M2}) {
    const ElementType type = format;
    EXPECT_TRUE(type.is_fp8() && IsFloatingPoint(type));
    EXPECT_EQ(type.fp8(), format);
    EXPECT_EQ(SizeBytes(type), 1);
  }
  EXPECT_EQ(Name(ElementType(Fp8Format::kE4M3)), "fp8_e4m3");
  EXPECT_EQ(Name(ElementType(Fp8Format::kE5M2)), "fp8_e5m2");
}

}  // namespace
}  // namespace tessera
