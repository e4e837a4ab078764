// numeric_tools.h - random tensors, layouts, naive references and finite differences for tests.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn::testing {

using Doubles = std::vector<double>;

inline Doubles numbers(const Tensor& x) {
  return x.to_vector<double>();
}

/// Values in (-1, 1), the same for the same seed; no two alike.
inline Doubles random_numbers(int64_t n, uint64_t seed) {
  Doubles values;
  uint64_t state = seed * 2654435761u + 12345;
  for (int64_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    values.push_back(static_cast<double>(state >> 11) / 4503599627370496.0 - 1);
  }
  return values;
}

inline Tensor random_tensor(const Shape& sizes, uint64_t seed, DType dtype = DType::kF64) {
  return raw::to(from_vector(random_numbers(sizes.numel(), seed), sizes), dtype);
}

inline Tensor labels(const std::vector<int64_t>& values, const Shape& sizes) {
  return from_vector(values, sizes);
}

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

/// The same values in every layout a kernel may be given.
inline std::vector<NamedTensor> layouts_of(const Tensor& x) {
  std::vector<NamedTensor> all{{"contiguous", x}};
  const int n = x.dim();
  if (n >= 2) {
    const Tensor turned = raw::contiguous(raw::transpose(x, 0, n - 1));
    all.push_back({"transposed", raw::transpose(turned, 0, n - 1)});
  }
  if (n >= 1) {
    Shape wide = x.sizes();
    wide[n - 1] = 2 * wide[n - 1] + 1;
    const Tensor room = full(wide, 77, {.dtype = x.dtype()});
    const Tensor part = raw::slice(room, n - 1, 1, wide[n - 1], 2);
    raw::copy_(part, x);
    all.push_back({"sliced", part});
  }
  if (n == 4) {
    all.push_back({"channels_last", raw::contiguous(x, MemoryFormat::kChannelsLast)});
  }
  return all;
}

inline void expect_close(const Doubles& got, const Doubles& want, double rtol, double atol,
                         const std::string& what = "") {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << what << " element " << i;
    } else if (std::isinf(want[i])) {
      ASSERT_EQ(got[i], want[i]) << what << " element " << i;
    } else {
      ASSERT_NEAR(got[i], want[i], atol + rtol * std::abs(want[i])) << what << " element " << i;
    }
  }
}

/// PyTorch's tolerances for a dtype.
inline double rtol_of(DType d) {
  return d == DType::kF64 ? 1e-7 : d == DType::kF32 ? 2e-6 : d == DType::kF16 ? 1e-3 : 1.6e-2;
}

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

inline double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Compares `gradients(inputs)` with central differences of dot(f(inputs), weights), element by
/// element.
inline void compare_with_differences(const Function& f, const std::vector<Tensor>& inputs,
                                     const Doubles& weights, const std::vector<Doubles>& gradients,
                                     const std::string& what) {
  constexpr double kStep = 1e-6;
  for (size_t k = 0; k < inputs.size(); ++k) {
    if (gradients[k].empty()) continue;
    const Doubles base = numbers(inputs[k]);
    for (size_t i = 0; i < base.size(); ++i) {
      double sums[2];
      for (int side = 0; side < 2; ++side) {
        Doubles moved = base;
        moved[i] += side ? -kStep : kStep;
        std::vector<Tensor> at = inputs;
        at[k] = from_vector(moved, inputs[k].sizes());
        sums[side] = dot(numbers(f(at)), weights);
      }
      const double want = (sums[0] - sums[1]) / (2 * kStep);
      ASSERT_NEAR(gradients[k][i], want, 2e-7 + 1e-5 * std::abs(want))
          << what << ": input " << k << " element " << i;
    }
  }
}

inline std::vector<Tensor> leaves_of(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : inputs) {
    Tensor leaf = x.detach().clone();
    if (is_floating(x.dtype())) leaf.set_requires_grad();
    leaves.push_back(leaf);
  }
  return leaves;
}

/// First derivatives of f at `inputs` (f64) with fixed random weights on the output, by the tape.
inline std::vector<Tensor> tape_gradients(const Function& f, const std::vector<Tensor>& leaves,
                                          const Tensor& weights, bool create_graph) {
  const Tensor y = f(leaves);
  const Tensor roots[] = {y}, grads[] = {weights};
  std::vector<Tensor> wanted;
  for (const Tensor& x : leaves) {
    if (x.requires_grad()) wanted.push_back(x);
  }
  return grad(roots, wanted, grads, {.create_graph = create_graph, .allow_unused = true});
}

/// Checks first and (unless order is 1) second derivatives of f with respect to every floating
/// input, against finite differences.
inline void check_gradients(const std::string& what, const Function& f,
                            const std::vector<Tensor>& inputs, int order = 2) {
  const Doubles weights = random_numbers(f(inputs).numel(), 99);
  const auto first = [&](const std::vector<Tensor>& at, bool create_graph) {
    const std::vector<Tensor> leaves = leaves_of(at);
    const Tensor w = from_vector(weights, f(at).sizes());
    return std::pair{leaves, tape_gradients(f, leaves, w, create_graph)};
  };
  const auto spread = [&](const std::vector<Tensor>& grads) {
    std::vector<Doubles> all;
    size_t next = 0;
    for (const Tensor& x : inputs) {
      if (!is_floating(x.dtype())) {
        all.emplace_back();
        continue;
      }
      const Tensor& g = grads[next++];
      all.push_back(g.defined() ? numbers(g) : Doubles(static_cast<size_t>(x.numel()), 0.0));
    }
    return all;
  };
  const std::vector<Tensor> plain = first(inputs, false).second;
  compare_with_differences(f, inputs, weights, spread(plain), what);
  if (order < 2 || ::testing::Test::HasFatalFailure()) return;
  // The gradient under create_graph is the same, and is itself differentiable.
  auto [leaves, recorded] = first(inputs, true);
  const std::vector<Doubles> a = spread(plain), b = spread(recorded);
  for (size_t k = 0; k < a.size(); ++k) expect_close(b[k], a[k], 1e-9, 1e-11, what + " recorded");
  std::vector<Tensor> grads, roots, seeds, wanted;
  Doubles seed_numbers;
  for (const Tensor& g : recorded) {
    if (!g.defined()) continue;
    grads.push_back(g);
    const Doubles w = random_numbers(g.numel(), 7 + grads.size());
    seed_numbers.insert(seed_numbers.end(), w.begin(), w.end());
    if (!g.requires_grad()) continue;
    roots.push_back(g);
    seeds.push_back(from_vector(w, g.sizes()));
  }
  for (const Tensor& x : leaves) {
    if (x.requires_grad()) wanted.push_back(x);
  }
  std::vector<Tensor> second(wanted.size());
  if (!roots.empty()) second = grad(roots, wanted, seeds, {.allow_unused = true});
  const Function all_grads = [&](const std::vector<Tensor>& at) {
    std::vector<Tensor> flat;
    for (const Tensor& g : first(at, false).second) {
      if (g.defined()) flat.push_back(reshape(g, {g.numel()}));
    }
    return cat(flat, 0).detach();
  };
  compare_with_differences(all_grads, inputs, seed_numbers, spread(second), what + " (2nd order)");
}

/// Expects `call` to throw E with `text` in its message.
template <class E, class F>
void expect_error(const char* text, F&& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected: " << text;
  } catch (const E& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
        << "expected: " << text << "\ngot: " << error.what();
  }
}

}  // namespace tarn::testing
