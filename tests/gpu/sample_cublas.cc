// A library that has what is called of cuBLAS, for tests of how it is loaded. Its products compute
// nothing and look at what they are given, and a handle's third one fails.
#include <cstdint>
#include <deque>

namespace {

constexpr int kInvalidValue = 7;  // CUBLAS_STATUS_INVALID_VALUE.

struct Handle {
  void* stream = nullptr;
  int products = 0;
};

int refusal;  // What cublasCreate says.

// Of bf16 that are finite, and not all alike.
bool IsNoise(const uint16_t* matrix, int64_t count) {
  bool differs = false;
  for (int64_t i = 0; i < count; ++i) {
    if ((matrix[i] & 0x7F80) == 0x7F80) return false;
    differs = differs || matrix[i] != matrix[0];
  }
  return differs;
}

}  // namespace

extern "C" {

void SampleCublasRefuses(int status) { refusal = status; }

int cublasCreate_v2(void** handle) {
  static std::deque<Handle> handles;
  handles.emplace_back();
  *handle = &handles.back();
  return refusal;
}

int cublasSetStream_v2(void* handle, void* stream) {
  static_cast<Handle*>(handle)->stream = stream;
  return stream == nullptr ? kInvalidValue : 0;
}

int cublasGemmEx(void* of, int op_a, int op_b, int m, int n, int k, const void* alpha,
                 const void* a, int a_type, int lda, const void* b, int b_type, int ldb,
                 const void* beta, void* c, int c_type, int ldc, int compute, int algorithm) {
  Handle* const handle = static_cast<Handle*>(of);
  const bool plain = op_a == 0 && op_b == 0 && algorithm == -1 && compute == 68 &&  // 32F
                     a_type == 14 && b_type == 14 && c_type == 14;                  // R_16BF
  const bool square = m > 0 && n == m && k == m && lda == m && ldb == m && ldc == m;
  const bool apart = a != nullptr && b != nullptr && c != nullptr && a != b && b != c && c != a;
  if (handle->stream == nullptr || !plain || !square || !apart) return kInvalidValue;
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0)
    return kInvalidValue;
  const int64_t count = int64_t{1} * m * m;
  if (!IsNoise(static_cast<const uint16_t*>(a), count)) return kInvalidValue;
  if (!IsNoise(static_cast<const uint16_t*>(b), count)) return kInvalidValue;
  return ++handle->products == 3 ? 13 : 0;
}

}  // extern "C"
