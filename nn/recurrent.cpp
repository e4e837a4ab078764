// recurrent.cpp - recurrent layers in terms of recorded operations.
//
// Within a layer time comes first: the products with all inputs are one, and each step then reads
// rows that lie together.
#include "tarn/nn/recurrent.h"

#include <cmath>

#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/core/raw_random.h"
#include "tarn/nn/init.h"

namespace tarn::nn {
namespace {

int64_t gates_of(Recurrence kind) {
  return kind == Recurrence::kLstm ? 4 : kind == Recurrence::kGru ? 3 : 1;
}

Recurrence plain(bool relu) {
  return relu ? Recurrence::kRelu : Recurrence::kTanh;
}

template <class Options>
Recurrence gated(const char* name, Recurrence kind, const Options& o) {
  TARN_CHECK_AS(ValueError, !o.relu, name, ": relu is a choice of RNN's alone");
  return kind;
}

template <class Options>
const Options& checked(const Options& o) {
  TARN_CHECK_AS(ValueError, o.in > 0 && o.hidden > 0,
                "recurrent layer: in and hidden must be positive; got in=", o.in,
                ", hidden=", o.hidden);
  return o;
}

/// The state after a step whose inputs have brought `gates` (W_ih x + b_ih).
RecurrentState advance(Recurrence kind, const Tensor& gates, const RecurrentState& state,
                       const RecurrentWeights& w) {
  const Tensor inner = linear(state.h, w.weight_hh, w.bias_hh);
  if (kind == Recurrence::kGru) {
    const std::vector<Tensor> a = chunk(gates, 3, 1), b = chunk(inner, 3, 1);
    const Tensor r = sigmoid(a[0] + b[0]), z = sigmoid(a[1] + b[1]);
    const Tensor n = tanh(a[2] + r * b[2]);
    return {.h = n + z * (state.h - n)};
  }
  const Tensor sum = gates + inner;
  if (kind == Recurrence::kTanh) return {.h = tanh(sum)};
  if (kind == Recurrence::kRelu) return {.h = relu(sum)};
  const std::vector<Tensor> parts = chunk(sum, 4, 1);
  const Tensor i = sigmoid(parts[0]), f = sigmoid(parts[1]), o = sigmoid(parts[3]);
  const Tensor c = f * state.c + i * tanh(parts[2]);
  return {.h = o * tanh(c), .c = c};
}

/// What is undefined becomes 0, of x's dtype and device.
void complete(RecurrentState& state, Recurrence kind, const Shape& sizes, const Tensor& x) {
  const auto start = [&] { return zeros(sizes, {.dtype = x.dtype(), .device = x.device()}); };
  if (!state.h.defined()) state.h = start();
  if (kind == Recurrence::kLstm && !state.c.defined()) state.c = start();
}

void check_state(const std::string& name, Recurrence kind, const RecurrentState& state,
                 const Shape& sizes) {
  TARN_CHECK_AS(ValueError, kind == Recurrence::kLstm || !state.c.defined(), name,
                ": a state's c is for LSTMs; got c=", state.c.describe());
  for (const Tensor* t : {&state.h, &state.c}) {
    TARN_CHECK_AS(ShapeError, !t->defined() || t->sizes() == sizes, name, ": a state's ",
                  t == &state.h ? "h" : "c", " must be ", sizes, "; got ", t->describe());
  }
}

void check_lengths(const std::string& name, const Tensor& x, const Tensor& lengths) {
  const int64_t batch = x.size(0), time = x.size(1);
  TARN_CHECK_AS(ShapeError, lengths.sizes() == Shape({batch}) && lengths.dtype() == DType::kI64,
                name, ": lengths must be [", batch, "] i64; got ", lengths.describe());
  for (const int64_t length : lengths.to_vector<int64_t>()) {
    TARN_CHECK_AS(ValueError, length >= 0 && length <= time, name,
                  ": lengths must lie in 0..T = ", time, "; got ", length);
  }
}

}  // namespace

RecurrentWeights::RecurrentWeights(Module* owner, Recurrence kind, int64_t in, int64_t hidden,
                                   bool with_bias, const std::string& suffix)
    : weight_ih(owner, "weight_ih" + suffix, parameter_memory({gates_of(kind) * hidden, in})),
      weight_hh(owner, "weight_hh" + suffix, parameter_memory({gates_of(kind) * hidden, hidden})),
      bias_ih(owner, "bias_ih" + suffix,
              with_bias ? parameter_memory({gates_of(kind) * hidden}) : Tensor()),
      bias_hh(owner, "bias_hh" + suffix,
              with_bias ? parameter_memory({gates_of(kind) * hidden}) : Tensor()) {
  const double bound = 1 / std::sqrt(static_cast<double>(hidden));
  for (const Parameter* p : {&weight_ih, &weight_hh, &bias_ih, &bias_hh}) {
    if (p->defined()) init::uniform_(*p, -bound, bound);
  }
}

Recurrent::Recurrent(Module* parent, std::string name, Recurrence kind, const Options& o)
    : Module(parent, std::move(name)), kind_(kind), options_(checked(o)) {
  TARN_CHECK_AS(ValueError, o.layers > 0, "recurrent layer: layers must be positive; got ",
                o.layers);
  raw::check_probability("recurrent layer: dropout", o.dropout);
  for (int64_t layer = 0; layer < o.layers; ++layer) {
    const int64_t in = layer == 0 ? o.in : o.hidden * static_cast<int64_t>(directions());
    for (size_t direction = 0; direction < directions(); ++direction) {
      const std::string suffix = "_l" + std::to_string(layer) + (direction == 1 ? "_reverse" : "");
      weights_.push_back(
          std::make_unique<RecurrentWeights>(this, kind, in, o.hidden, o.bias, suffix));
    }
  }
}

void Recurrent::check_input(const Tensor& x, const RecurrentState& state) const {
  TARN_CHECK_AS(ShapeError,
                x.defined() && x.dim() == 3 && x.size(2) == options_.in && x.size(1) > 0, kind(),
                ": x must be [B, T, ", options_.in, "] with T > 0; got ", x.describe());
  check_state(kind(), kind_, state,
              {static_cast<int64_t>(weights_.size()), x.size(0), options_.hidden});
}

Tensor Recurrent::run_direction(const Tensor& x, size_t which, RecurrentState& state,
                                const std::vector<Tensor>& runs) const {
  const RecurrentWeights& w = *weights_[which];
  const std::vector<Tensor> gates = unbind(linear(x, w.weight_ih, w.bias_ih), 0);
  std::vector<Tensor> output(gates.size());
  const bool reverse = which % directions() == 1;
  for (size_t step = 0; step < gates.size(); ++step) {
    const size_t t = reverse ? gates.size() - 1 - step : step;
    RecurrentState next = advance(kind_, gates[t], state, w);
    output[t] = next.h;
    if (!runs.empty()) {
      output[t] = where(runs[t], next.h, Scalar(0));
      next.h = where(runs[t], next.h, state.h);
      if (next.c.defined()) next.c = where(runs[t], next.c, state.c);
    }
    state = std::move(next);
  }
  return stack(output, 0);
}

Tensor Recurrent::run_layers(const Tensor& x, std::vector<RecurrentState>& states,
                             const std::vector<Tensor>& runs) const {
  Tensor y = x.transpose(0, 1);
  for (size_t which = 0; which < weights_.size(); which += directions()) {
    if (which > 0) y = dropout(y, options_.dropout, training());
    std::vector<Tensor> both;
    for (size_t d = 0; d < directions(); ++d) {
      both.push_back(run_direction(y, which + d, states[which + d], runs));
    }
    y = both.size() == 1 ? both[0] : cat(both, 2);
  }
  return y.transpose(0, 1);
}

RecurrentResult Recurrent::run(const Tensor& input, const RecurrentState& start,
                               const Tensor& lengths) {
  RecurrentResult result;
  result.output = hooked(input, [&](const Tensor& x) {
    check_input(x, start);
    RecurrentState all = start;
    complete(all, kind_, {static_cast<int64_t>(weights_.size()), x.size(0), options_.hidden}, x);
    std::vector<RecurrentState> states(weights_.size());
    const std::vector<Tensor> h = unbind(all.h, 0);
    const std::vector<Tensor> c =
        all.c.defined() ? unbind(all.c, 0) : std::vector<Tensor>(h.size());
    for (size_t i = 0; i < states.size(); ++i) states[i] = {.h = h[i], .c = c[i]};

    Tensor output;
    if (lengths.defined()) {
      check_lengths(kind(), x, lengths);
      const Tensor steps = arange(x.size(1), {.dtype = DType::kI64, .device = x.device()});
      // [B, T, 1]: the steps that rows have. What stands in the others may be NaN, so it goes
      // first.
      const Tensor runs = lt(steps, lengths.to(x.device()).unsqueeze(1)).unsqueeze(2);
      output = run_layers(where(runs, x, Scalar(0)), states, unbind(runs, 1));
    } else {
      output = run_layers(x, states, {});
    }

    std::vector<Tensor> last_h, last_c;
    for (RecurrentState& state : states) {
      last_h.push_back(std::move(state.h));
      last_c.push_back(std::move(state.c));
    }
    result.state = {.h = stack(last_h, 0),
                    .c = kind_ == Recurrence::kLstm ? stack(last_c, 0) : Tensor()};
    return output;
  });
  return result;
}

std::string Recurrent::details() const {
  const Options& o = options_;
  return tarn::detail::concat(
      o.in, ", ", o.hidden, o.layers > 1 ? ", layers=" + std::to_string(o.layers) : "",
      o.bidirectional ? ", bidirectional" : "", kind_ == Recurrence::kRelu ? ", relu" : "",
      o.dropout > 0 ? tarn::detail::concat(", dropout=", o.dropout) : "",
      o.bias ? "" : ", no bias");
}

RNN::RNN(Module* parent, std::string name, const Options& o)
    : Recurrent(parent, std::move(name), plain(o.relu), o) {}
LSTM::LSTM(Module* parent, std::string name, const Options& o)
    : Recurrent(parent, std::move(name), gated("LSTM", Recurrence::kLstm, o), o) {}
GRU::GRU(Module* parent, std::string name, const Options& o)
    : Recurrent(parent, std::move(name), gated("GRU", Recurrence::kGru, o), o) {}

RecurrentCell::RecurrentCell(Module* parent, std::string name, Recurrence kind, const Options& o)
    : Module(parent, std::move(name)),
      kind_(kind),
      options_(checked(o)),
      weights_(this, kind, o.in, o.hidden, o.bias, "") {}

RecurrentState RecurrentCell::step(const Tensor& input, const RecurrentState& before) {
  RecurrentState next;
  const Tensor h = hooked(input, [&](const Tensor& x) {
    TARN_CHECK_AS(ShapeError, x.defined() && x.dim() == 2 && x.size(1) == options_.in, kind(),
                  ": x must be [B, ", options_.in, "]; got ", x.describe());
    const Shape sizes = {x.size(0), options_.hidden};
    check_state(kind(), kind_, before, sizes);
    RecurrentState state = before;
    complete(state, kind_, sizes, x);
    next = advance(kind_, linear(x, weights_.weight_ih, weights_.bias_ih), state, weights_);
    return next.h;
  });
  next.h = h;
  return next;
}

std::string RecurrentCell::details() const {
  return tarn::detail::concat(options_.in, ", ", options_.hidden,
                              kind_ == Recurrence::kRelu ? ", relu" : "",
                              options_.bias ? "" : ", no bias");
}

RNNCell::RNNCell(Module* parent, std::string name, const Options& o)
    : RecurrentCell(parent, std::move(name), plain(o.relu), o) {}
LSTMCell::LSTMCell(Module* parent, std::string name, const Options& o)
    : RecurrentCell(parent, std::move(name), gated("LSTMCell", Recurrence::kLstm, o), o) {}
GRUCell::GRUCell(Module* parent, std::string name, const Options& o)
    : RecurrentCell(parent, std::move(name), gated("GRUCell", Recurrence::kGru, o), o) {}

}  // namespace tarn::nn
