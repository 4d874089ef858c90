// Elements of an original parameter, or of a rank's part of it, in the dtype that the job's shards
// have: fp32, or fp64 where the model's parameter is fp64.
//
//   session->Initialize([&](int unit, int parameter, absl::Span<float> values) { ... });
//   session->Initialize([&](int unit, int parameter, Values values) {
//     if (values.dtype() == DType::kFp64) Fill(values.as<double>()); else ...
//   });
//
// Code that has only fp32 parameters takes spans of float: values convert to them implicitly.
// Asking for another type than the values have ends the process and says so, as
// reading them so would give nonsense. Views: they own nothing. Thread-compatible.
#ifndef TESSERA_LAYOUT_VALUES_H_
#define TESSERA_LAYOUT_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "base/check.h"
#include "layout/dtype.h"

namespace tessera {

template <typename Real>
constexpr DType DTypeOfReal() {
  static_assert(std::is_same<Real, float>::value || std::is_same<Real, double>::value,
                "values are float or double");
  return std::is_same<Real, double>::value ? DType::kFp64 : DType::kFp32;
}

class ConstValues {
 public:
  // `dtype`: kFp32 or kFp64.
  ConstValues(const void* data, int64_t count, DType dtype)
      : data_(data), size_(static_cast<size_t>(count)), dtype_(dtype) {
    TESSERA_CHECK(dtype == DType::kFp32 || dtype == DType::kFp64);
  }
  ConstValues(absl::Span<const float> values)  // NOLINT(google-explicit-constructor)
      : ConstValues(values.data(), static_cast<int64_t>(values.size()), DType::kFp32) {}
  ConstValues(absl::Span<const double> values)  // NOLINT(google-explicit-constructor)
      : ConstValues(values.data(), static_cast<int64_t>(values.size()), DType::kFp64) {}
  ConstValues(absl::Span<float> values)  // NOLINT(google-explicit-constructor)
      : ConstValues(absl::Span<const float>(values)) {}
  ConstValues(absl::Span<double> values)  // NOLINT(google-explicit-constructor)
      : ConstValues(absl::Span<const double>(values)) {}
  ConstValues(const std::vector<float>& values)  // NOLINT(google-explicit-constructor)
      : ConstValues(absl::MakeConstSpan(values)) {}
  ConstValues(const std::vector<double>& values)  // NOLINT(google-explicit-constructor)
      : ConstValues(absl::MakeConstSpan(values)) {}

  DType dtype() const { return dtype_; }
  size_t size() const { return size_; }
  size_t size_bytes() const { return size_ * static_cast<size_t>(SizeBytes(dtype_)); }
  bool empty() const { return size_ == 0; }
  const void* data() const { return data_; }
  // Elements [begin, begin + count), which there are.
  ConstValues Part(size_t begin, size_t count) const {
    TESSERA_CHECK(begin <= size_ && count <= size_ - begin);
    return ConstValues(static_cast<const char*>(data_) + begin * SizeBytes(dtype_),
                       static_cast<int64_t>(count), dtype_);
  }

  template <typename Real>
  absl::Span<const Real> as() const {
    TESSERA_CHECK(dtype_ == DTypeOfReal<Real>());
    return absl::MakeConstSpan(static_cast<const Real*>(data_), size_);
  }
  operator absl::Span<const float>() const { return as<float>(); }    // NOLINT
  operator absl::Span<const double>() const { return as<double>(); }  // NOLINT

 private:
  const void* data_;
  size_t size_;
  DType dtype_;
};

class Values {
 public:
  // `dtype`: kFp32 or kFp64.
  Values(void* data, int64_t count, DType dtype)
      : data_(data), size_(static_cast<size_t>(count)), dtype_(dtype) {
    TESSERA_CHECK(dtype == DType::kFp32 || dtype == DType::kFp64);
  }
  Values(absl::Span<float> values)  // NOLINT(google-explicit-constructor)
      : Values(values.data(), static_cast<int64_t>(values.size()), DType::kFp32) {}
  Values(absl::Span<double> values)  // NOLINT(google-explicit-constructor)
      : Values(values.data(), static_cast<int64_t>(values.size()), DType::kFp64) {}

  DType dtype() const { return dtype_; }
  size_t size() const { return size_; }
  size_t size_bytes() const { return size_ * static_cast<size_t>(SizeBytes(dtype_)); }
  bool empty() const { return size_ == 0; }
  void* data() const { return data_; }

  template <typename Real>
  absl::Span<Real> as() const {
    TESSERA_CHECK(dtype_ == DTypeOfReal<Real>());
    return absl::MakeSpan(static_cast<Real*>(data_), size_);
  }
  operator absl::Span<float>() const { return as<float>(); }          // NOLINT
  operator absl::Span<double>() const { return as<double>(); }        // NOLINT
  operator absl::Span<const float>() const { return as<float>(); }    // NOLINT
  operator absl::Span<const double>() const { return as<double>(); }  // NOLINT
  operator ConstValues() const {                                      // NOLINT
    return ConstValues(data_, static_cast<int64_t>(size_), dtype_);
  }

 private:
  void* data_;
  size_t size_;
  DType dtype_;
};

}  // namespace tessera

#endif  // TESSERA_LAYOUT_VALUES_H_
