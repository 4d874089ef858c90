// A library that has what is called of cuBLAS, for tests of how it is loaded. Its products compute
// nothing, and the third one fails.
extern "C" {

static int refusal;  // What cublasCreate says.
void SampleCublasRefuses(int status) { refusal = status; }

int cublasCreate_v2(void** handle) {
  static int products;
  *handle = &products;
  return refusal;
}

int cublasSetStream_v2(void*, void* stream) { return stream == nullptr ? 7 : 0; }

int cublasGemmEx(void* handle, int, int, int, int, int, const void*, const void*, int, int,
                 const void*, int, int, const void*, void*, int, int, int, int) {
  return ++*static_cast<int*>(handle) == 3 ? 13 : 0;
}

}  // extern "C"
