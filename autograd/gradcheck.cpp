// gradcheck.cpp - central differences against the tape.
#include "tarn/autograd/gradcheck.h"

#include <cmath>
#include <random>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/grad_mode.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {

using Values = std::vector<double>;  // of one tensor, row-major

Shape index_at(int64_t position, const Shape& sizes) {
  Shape index = Shape::filled(sizes.dim(), 0);
  for (int d = sizes.dim() - 1; d >= 0; --d) {
    index[d] = position % sizes[d];
    position /= sizes[d];
  }
  return index;
}

void set_element(const Tensor& x, int64_t position, double value) {
  const Shape index = index_at(position, x.sizes());
  int64_t offset = x.storage_offset();
  for (int d = 0; d < x.dim(); ++d) offset += index[d] * x.strides()[d];
  raw::fill_(raw::as_strided(x, {}, {}, offset), value);
}

Values random_values(std::mt19937_64& rng, int64_t count) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  Values v(static_cast<size_t>(count));
  for (double& e : v) e = uniform(rng);
  return v;
}

Tensor like(const Tensor& x, const Values& values) {
  return raw::to(raw::to(from_vector(values, x.sizes()), x.dtype()), x.device());
}

double l1(const Values& v) {
  double sum = 0;
  for (double e : v) sum += std::abs(e);
  return sum;
}

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// One function at one point; holds nothing but references.
class Checker {
 public:
  Checker(const char* op, const TensorFunction& fn, const std::vector<Tensor>& inputs,
          const GradcheckOptions& options)
      : op_(op), fn_(fn), inputs_(inputs), options_(options), rng_(options.seed) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      TARN_CHECK_AS(ValueError, inputs[i].defined(), op_, ": input ", i, " is undefined");
      if (!inputs[i].requires_grad()) continue;
      TARN_CHECK_AS(DTypeError, inputs[i].dtype() == DType::kF64, op_, ": input ", i,
                    " must be f64, or differences drown in rounding; got ", inputs[i].describe());
      checked_.push_back(i);
    }
    TARN_CHECK_AS(ValueError, !checked_.empty(), op_, ": no input requires grad");
  }

  void run() {
    // The inputs as they are, strides and all, but as leaves of a graph of our own.
    for (const Tensor& x : inputs_) {
      leaves_.push_back(raw::alias(x));
      leaves_.back().set_requires_grad(x.requires_grad());
    }
    outputs_ = fn_(leaves_);
    for (size_t o = 0; o < outputs_.size(); ++o) {
      TARN_CHECK_AS(ValueError, outputs_[o].defined(), op_, ": output ", o, " is undefined");
      if (!is_floating(outputs_[o].dtype())) continue;
      if (options_.fast) {
        check_directions(o);
      } else {
        check_elements(o);
      }
    }
  }

 private:
  // fn at inputs_ with input i replaced.
  Values evaluate(size_t i, const Tensor& replaced, size_t output) const {
    std::vector<Tensor> in;
    for (size_t k = 0; k < inputs_.size(); ++k) {
      in.push_back(k == i ? raw::clone(replaced) : raw::clone(inputs_[k]));
      in.back().set_requires_grad(inputs_[k].requires_grad());
    }
    const std::vector<Tensor> out = fn_(in);
    TARN_CHECK_AS(ShapeError,
                  out.size() == outputs_.size() && out[output].sizes() == outputs_[output].sizes(),
                  op_, ": the function must give the same sizes every time");
    return out[output].to_vector<double>();
  }

  // Gradients of sum(output * cotangent) with respect to the checked inputs, as values.
  std::vector<Values> backward_once(size_t output, const Tensor& cotangent) const {
    std::vector<Tensor> wanted;
    for (size_t i : checked_) wanted.push_back(leaves_[i]);
    std::vector<Values> values;
    if (!outputs_[output].requires_grad()) {
      for (const Tensor& x : wanted) values.emplace_back(static_cast<size_t>(x.numel()), 0.0);
      return values;
    }
    const std::vector<Tensor> grads = grad({&outputs_[output], 1}, wanted, {&cotangent, 1},
                                           {.retain_graph = true, .allow_unused = true});
    for (size_t k = 0; k < grads.size(); ++k) {
      const Tensor& x = wanted[k];
      if (!grads[k].defined()) {
        values.emplace_back(static_cast<size_t>(x.numel()), 0.0);
        continue;
      }
      TARN_CHECK_AS(AutogradError,
                    grads[k].sizes() == x.sizes() && grads[k].dtype() == x.dtype() &&
                        grads[k].device() == x.device(),
                    op_, ": the gradient of input ", checked_[k], " is ", grads[k].describe(),
                    ", the input ", x.describe());
      values.push_back(grads[k].to_vector<double>());
    }
    return values;
  }

  std::vector<Values> backward(size_t output, const Values& cotangent) const {
    const Tensor g = like(outputs_[output], cotangent);
    std::vector<Values> first = backward_once(output, g), second = backward_once(output, g);
    for (size_t k = 0; k < first.size(); ++k) {
      for (size_t e = 0; e < first[k].size(); ++e) {
        const double a = first[k][e], b = second[k][e];
        TARN_CHECK_AS(AutogradError,
                      std::abs(a - b) <= options_.nondet_tol || (std::isnan(a) && std::isnan(b)),
                      op_, ": two backward passes differ: gradient of output ", output,
                      " with respect to input ", checked_[k], " at index ",
                      index_at(static_cast<int64_t>(e), leaves_[checked_[k]].sizes()), ": ", a,
                      " and ", b);
      }
    }
    return first;
  }

  void check_elements(size_t output) const {
    const int64_t count = outputs_[output].numel();
    std::vector<std::vector<Values>> rows;  // [output element][checked input][input element]
    for (int64_t j = 0; j < count; ++j) {
      Values one_hot(static_cast<size_t>(count), 0.0);
      one_hot[static_cast<size_t>(j)] = 1;
      rows.push_back(backward(output, one_hot));
    }
    for (size_t k = 0; k < checked_.size(); ++k) {
      const size_t i = checked_[k];
      const Values at = inputs_[i].to_vector<double>();
      for (int64_t e = 0; e < inputs_[i].numel(); ++e) {
        const Values column = difference(i, output, e, at[static_cast<size_t>(e)]);
        for (int64_t j = 0; j < count; ++j) {
          const double numeric = column[static_cast<size_t>(j)];
          const double analytic = rows[static_cast<size_t>(j)][k][static_cast<size_t>(e)];
          TARN_CHECK_AS(AutogradError, close(analytic, numeric, options_.atol), op_,
                        ": gradient of output ", output, " at index ",
                        index_at(j, outputs_[output].sizes()), " with respect to input ", i,
                        " at index ", index_at(e, inputs_[i].sizes()), ": analytic ", analytic,
                        ", numeric ", numeric);
        }
      }
    }
  }

  // d(output)/d(element e of input i), every element of the output.
  Values difference(size_t i, size_t output, int64_t e, double at) const {
    const Tensor moved = raw::clone(inputs_[i]);
    set_element(moved, e, at + options_.eps);
    Values up = evaluate(i, moved, output);
    set_element(moved, e, at - options_.eps);
    const Values down = evaluate(i, moved, output);
    for (size_t j = 0; j < up.size(); ++j) up[j] = (up[j] - down[j]) / (2 * options_.eps);
    return up;
  }

  // v . J . u for random u and v, once per checked input.
  void check_directions(size_t output) {
    for (int round = 0; round < options_.directions; ++round) {
      const Values v = random_values(rng_, outputs_[output].numel());
      const std::vector<Values> rows = backward(output, v);
      for (size_t k = 0; k < checked_.size(); ++k) {
        const size_t i = checked_[k];
        const Values u = random_values(rng_, inputs_[i].numel());
        const double analytic = dot(u, rows[k]);
        Values up = inputs_[i].to_vector<double>(), down = up;
        for (size_t e = 0; e < u.size(); ++e) {
          up[e] += options_.eps * u[e];
          down[e] -= options_.eps * u[e];
        }
        const double numeric = (dot(v, evaluate(i, like(inputs_[i], up), output)) -
                                dot(v, evaluate(i, like(inputs_[i], down), output))) /
                               (2 * options_.eps);
        // What errors of atol in every element of J could add up to.
        TARN_CHECK_AS(AutogradError, close(analytic, numeric, options_.atol * l1(u) * l1(v)), op_,
                      ": derivative of output ", output, " with respect to input ", i,
                      " along random direction ", round, ": analytic ", analytic, ", numeric ",
                      numeric);
      }
    }
  }

  bool close(double analytic, double numeric, double atol) const {
    return std::abs(analytic - numeric) <= atol + options_.rtol * std::abs(numeric);
  }

  const char* op_;
  const TensorFunction& fn_;
  const std::vector<Tensor>& inputs_;
  const GradcheckOptions& options_;
  std::mt19937_64 rng_;
  std::vector<size_t> checked_;  // inputs that require grad
  std::vector<Tensor> leaves_, outputs_;
};

}  // namespace

bool gradcheck(const TensorFunction& fn, const std::vector<Tensor>& inputs,
               const GradcheckOptions& options) {
  const GradModeGuard recording(true);
  Checker("gradcheck", fn, inputs, options).run();
  return true;
}

bool gradgradcheck(const TensorFunction& fn, const std::vector<Tensor>& inputs,
                   const GradcheckOptions& options, const std::vector<Tensor>& grad_outputs) {
  const GradModeGuard recording(true);
  const std::vector<Tensor> outputs = fn(inputs);
  TARN_CHECK_AS(ValueError, grad_outputs.empty() || grad_outputs.size() == outputs.size(),
                "gradgradcheck: one gradient per output; got ", grad_outputs.size(), " for ",
                outputs.size());
  // Inputs of the gradient function: those of fn, then the gradients of its recorded outputs.
  std::vector<Tensor> all = inputs;
  std::vector<size_t> recorded;
  std::mt19937_64 rng(options.seed);
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].requires_grad()) continue;
    recorded.push_back(o);
    all.push_back(grad_outputs.empty() ? like(outputs[o], random_values(rng, outputs[o].numel()))
                                       : raw::alias(grad_outputs[o]));
    all.back().set_requires_grad();
  }
  TARN_CHECK_AS(ValueError, !recorded.empty(), "gradgradcheck: no output requires grad");
  const size_t count = inputs.size();
  const TensorFunction gradients = [&](const std::vector<Tensor>& in) {
    const std::vector<Tensor> point(in.begin(), in.begin() + static_cast<int64_t>(count));
    const std::vector<Tensor> results = fn(point);
    std::vector<Tensor> outs, wanted;
    for (size_t o : recorded) outs.push_back(results[o]);
    for (const Tensor& x : point) {
      if (x.requires_grad()) wanted.push_back(x);
    }
    std::vector<Tensor> grads =
        grad(outs, wanted, std::span(in).subspan(count),
             {.retain_graph = true, .create_graph = true, .allow_unused = true});
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) grads[i] = zeros_like(wanted[i]);
    }
    return grads;
  };
  Checker("gradgradcheck", gradients, all, options).run();
  return true;
}

}  // namespace tarn
