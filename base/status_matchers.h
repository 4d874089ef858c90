// GoogleTest matchers for absl::Status and absl::StatusOr, spelled as in newer Abseil.
#ifndef TESSERA_BASE_STATUS_MATCHERS_H_
#define TESSERA_BASE_STATUS_MATCHERS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace status_internal {

inline const absl::Status& GetStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

}  // namespace status_internal

MATCHER(IsOk, "is OK") {
  *result_listener << status_internal::GetStatus(arg).ToString();
  return status_internal::GetStatus(arg).ok();
}

MATCHER_P2(StatusIs, code, message, "") {
  const absl::Status& status = status_internal::GetStatus(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

}  // namespace tessera

#define EXPECT_OK(expr) EXPECT_THAT((expr), ::tessera::IsOk())
#define ASSERT_OK(expr) ASSERT_THAT((expr), ::tessera::IsOk())
#define TESSERA_TEST_CONCAT_INNER_(a, b) a##b
#define TESSERA_TEST_CONCAT_(a, b) TESSERA_TEST_CONCAT_INNER_(a, b)
#define ASSERT_OK_AND_ASSIGN_IMPL_(statusor, lhs, expr) \
  auto statusor = (expr);                               \
  ASSERT_THAT(statusor, ::tessera::IsOk());             \
  lhs = std::move(statusor).value()
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_IMPL_(TESSERA_TEST_CONCAT_(_test_statusor_, __LINE__), lhs, expr)

#endif  // TESSERA_BASE_STATUS_MATCHERS_H_
