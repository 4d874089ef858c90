// The layers of byte_gpt.h, forwards and backwards, in plain loops: fp32, matrices by rows. A sum's
// order is that of the loops, so that the same program gives the same bits on each machine.
//
// What is "added to" holds what it had, plus the gradient. Pure; thread-safe.
#ifndef TESSERA_TESTS_TESTING_BYTE_GPT_MATH_H_
#define TESSERA_TESTS_TESTING_BYTE_GPT_MATH_H_

#include <cstdint>
#include <vector>

namespace tessera::testing_support {

using Floats = std::vector<float>;

// [rows, columns] -> [columns, rows].
Floats Transposed(const Floats& a, int64_t rows, int64_t columns);
// c [n, m] += a [n, k] b [k, m].
void AddProduct(const Floats& a, const Floats& b, int64_t n, int64_t k, int64_t m, Floats* c);

// x [n, in] -> [n, out]; weight [out, in], bias [out].
Floats Linear(const Floats& x, const Floats& weight, const Floats& bias);
// The gradient of x; those of weight and bias are added to.
Floats LinearBackward(const Floats& x, const Floats& weight, const Floats& dy, Floats* dweight,
                      Floats* dbias);

// What a normalisation of rows gives, and what its backward needs.
struct Normed {
  Floats y;       // [n, width]
  Floats hat;     // The same before gain and bias.
  Floats scales;  // [n]: 1 / standard deviation.
};
Normed LayerNorm(const Floats& x, const Floats& gain, const Floats& bias);
Floats LayerNormBackward(const Normed& normed, const Floats& gain, const Floats& dy, Floats* dgain,
                         Floats* dbias);

// x Phi(x), with the error function itself. In place of dy: the gradient of x.
Floats Gelu(const Floats& x);
void GeluBackward(const Floats& x, Floats* dy);

struct AttentionShape {
  int64_t batch = 1, context = 1, heads = 1, width = 1;
};
// Causal. qkv [batch, context, 3, heads, width / heads] -> [batch, context, width];
// weights [batch, heads, context, context] is written.
Floats Attention(const AttentionShape& shape, const Floats& qkv, Floats* weights);
// The gradient of qkv.
Floats AttentionBackward(const AttentionShape& shape, const Floats& qkv, const Floats& weights,
                         const Floats& dy);

// The mean of -log softmax(logits [n, vocabulary])[target], and its gradient in place of logits.
double CrossEntropy(const std::vector<uint8_t>& targets, Floats* logits);

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_BYTE_GPT_MATH_H_
