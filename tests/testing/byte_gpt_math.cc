#include "tests/testing/byte_gpt_math.h"

#include <algorithm>
#include <cmath>

namespace tessera::testing_support {
namespace {

int64_t Size(const Floats& values) { return static_cast<int64_t>(values.size()); }

// c += factor * a, which compilers make vectors of without another order.
void AddScaled(const float* a, float factor, int64_t count, float* c) {
  for (int64_t i = 0; i < count; ++i) c[i] += factor * a[i];
}

float Dot(const float* a, const float* b, int64_t count) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Where the parts of one head are in qkv and in attention's output.
struct Head {
  Head(const AttentionShape& shape, int64_t batch, int64_t head)
      : width(shape.width), size(shape.width / shape.heads) {
    first_row = batch * shape.context;
    column = head * size;
  }
  int64_t In(int part, int64_t at) const { return (first_row + at) * 3 * width + Part(part); }
  int64_t Out(int64_t at) const { return (first_row + at) * width + column; }
  int64_t Part(int part) const { return part * width + column; }

  int64_t width, size, first_row, column;
};

enum { kQuery, kKey, kValue };

}  // namespace

Floats Transposed(const Floats& a, int64_t rows, int64_t columns) {
  Floats result(a.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column)
      result[column * rows + row] = a[row * columns + column];
  }
  return result;
}

void AddProduct(const Floats& a, const Floats& b, int64_t n, int64_t k, int64_t m, Floats* c) {
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < k; ++i) AddScaled(&b[i * m], a[row * k + i], m, c->data() + row * m);
  }
}

Floats Linear(const Floats& x, const Floats& weight, const Floats& bias) {
  const int64_t out = Size(bias), in = Size(weight) / out, n = Size(x) / in;
  Floats y;
  y.reserve(n * out);
  for (int64_t row = 0; row < n; ++row) y.insert(y.end(), bias.begin(), bias.end());
  AddProduct(x, Transposed(weight, out, in), n, in, out, &y);
  return y;
}

Floats LinearBackward(const Floats& x, const Floats& weight, const Floats& dy, Floats* dweight,
                      Floats* dbias) {
  const int64_t out = Size(*dbias), in = Size(weight) / out, n = Size(x) / in;
  for (int64_t row = 0; row < n; ++row) AddScaled(&dy[row * out], 1, out, dbias->data());
  AddProduct(Transposed(dy, n, out), x, out, n, in, dweight);
  Floats dx(x.size());
  AddProduct(dy, weight, n, out, in, &dx);
  return dx;
}

Normed LayerNorm(const Floats& x, const Floats& gain, const Floats& bias) {
  constexpr float kEpsilon = 1e-5f;
  const int64_t width = Size(gain), n = Size(x) / width;
  Normed normed = {Floats(x.size()), Floats(x.size()), Floats(n)};
  for (int64_t row = 0; row < n; ++row) {
    const float* const from = &x[row * width];
    float sum = 0, squares = 0;
    for (int64_t i = 0; i < width; ++i) sum += from[i];
    const float mean = sum / static_cast<float>(width);
    for (int64_t i = 0; i < width; ++i) squares += (from[i] - mean) * (from[i] - mean);
    const float scale = 1 / std::sqrt(squares / static_cast<float>(width) + kEpsilon);
    normed.scales[row] = scale;
    for (int64_t i = 0; i < width; ++i) {
      normed.hat[row * width + i] = (from[i] - mean) * scale;
      normed.y[row * width + i] = normed.hat[row * width + i] * gain[i] + bias[i];
    }
  }
  return normed;
}

Floats LayerNormBackward(const Normed& normed, const Floats& gain, const Floats& dy, Floats* dgain,
                         Floats* dbias) {
  const int64_t width = Size(gain), n = Size(dy) / width;
  Floats dx(dy.size()), dhat(width);
  for (int64_t row = 0; row < n; ++row) {
    const float* const hat = &normed.hat[row * width];
    const float* const from = &dy[row * width];
    float sum = 0;
    for (int64_t i = 0; i < width; ++i) {
      (*dgain)[i] += from[i] * hat[i];
      (*dbias)[i] += from[i];
      dhat[i] = from[i] * gain[i];
      sum += dhat[i];
    }
    const float mean = sum / static_cast<float>(width);
    const float along = Dot(dhat.data(), hat, width) / static_cast<float>(width);
    for (int64_t i = 0; i < width; ++i)
      dx[row * width + i] = normed.scales[row] * (dhat[i] - mean - hat[i] * along);
  }
  return dx;
}

Floats Gelu(const Floats& x) {
  Floats y(x.size());
  for (size_t i = 0; i < x.size(); ++i)
    y[i] = 0.5f * x[i] * (1 + std::erf(x[i] * static_cast<float>(M_SQRT1_2)));
  return y;
}

void GeluBackward(const Floats& x, Floats* dy) {
  const float density_at_0 = static_cast<float>(M_SQRT1_2 * 0.5 * M_2_SQRTPI);
  for (size_t i = 0; i < x.size(); ++i) {
    const float below = 0.5f * (1 + std::erf(x[i] * static_cast<float>(M_SQRT1_2)));
    (*dy)[i] *= below + x[i] * density_at_0 * std::exp(-0.5f * x[i] * x[i]);
  }
}

Floats Attention(const AttentionShape& shape, const Floats& qkv, Floats* weights) {
  Floats y(shape.batch * shape.context * shape.width);
  weights->assign(shape.batch * shape.heads * shape.context * shape.context, 0);
  float* row = weights->data();  // Of one query.
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const Head head(shape, b, h);
      const float scale = 1 / std::sqrt(static_cast<float>(head.size));
      for (int64_t q = 0; q < shape.context; ++q, row += shape.context) {
        float largest = -INFINITY, sum = 0;
        for (int64_t k = 0; k <= q; ++k) {
          row[k] = scale * Dot(&qkv[head.In(kQuery, q)], &qkv[head.In(kKey, k)], head.size);
          largest = std::max(largest, row[k]);
        }
        for (int64_t k = 0; k <= q; ++k) sum += row[k] = std::exp(row[k] - largest);
        for (int64_t k = 0; k <= q; ++k) {
          row[k] /= sum;
          AddScaled(&qkv[head.In(kValue, k)], row[k], head.size, &y[head.Out(q)]);
        }
      }
    }
  }
  return y;
}

Floats AttentionBackward(const AttentionShape& shape, const Floats& qkv, const Floats& weights,
                         const Floats& dy) {
  Floats dqkv(qkv.size()), dweights(shape.context);
  const float* row = weights.data();
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const Head head(shape, b, h);
      const float scale = 1 / std::sqrt(static_cast<float>(head.size));
      for (int64_t q = 0; q < shape.context; ++q, row += shape.context) {
        float along = 0;
        for (int64_t k = 0; k <= q; ++k) {
          dweights[k] = Dot(&dy[head.Out(q)], &qkv[head.In(kValue, k)], head.size);
          along += dweights[k] * row[k];
          AddScaled(&dy[head.Out(q)], row[k], head.size, &dqkv[head.In(kValue, k)]);
        }
        for (int64_t k = 0; k <= q; ++k) {
          const float dscore = scale * row[k] * (dweights[k] - along);
          AddScaled(&qkv[head.In(kKey, k)], dscore, head.size, &dqkv[head.In(kQuery, q)]);
          AddScaled(&qkv[head.In(kQuery, q)], dscore, head.size, &dqkv[head.In(kKey, k)]);
        }
      }
    }
  }
  return dqkv;
}

double CrossEntropy(const std::vector<uint8_t>& targets, Floats* logits) {
  const int64_t n = static_cast<int64_t>(targets.size()), vocabulary = Size(*logits) / n;
  double loss = 0;
  for (int64_t row = 0; row < n; ++row) {
    float* const of_row = logits->data() + row * vocabulary;
    const float largest = *std::max_element(of_row, of_row + vocabulary);
    const float right = of_row[targets[row]] - largest;
    float sum = 0;
    for (int64_t i = 0; i < vocabulary; ++i) sum += of_row[i] = std::exp(of_row[i] - largest);
    loss += std::log(sum) - right;
    for (int64_t i = 0; i < vocabulary; ++i) of_row[i] /= sum * static_cast<float>(n);
    of_row[targets[row]] -= 1 / static_cast<float>(n);
  }
  return loss / static_cast<double>(n);
}

}  // namespace tessera::testing_support
