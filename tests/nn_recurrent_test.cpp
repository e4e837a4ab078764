// nn_recurrent_test.cpp - RNN, LSTM and GRU against PyTorch, and what they refuse.
#include <limits>
#include <memory>

#include "golden/reader.h"
#include "numeric_tools.h"
#include <gtest/gtest.h>

#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/backend.h"
#include "tarn/core/factory.h"
#include "tarn/core/random.h"
#include "tarn/nn/recurrent.h"

namespace tarn::golden {
namespace {

using nn::RecurrentOptions;
using nn::RecurrentState;
using testing::expect_error;

const File& file() {
  static const File f("recurrent");
  return f;
}

struct Place {
  Device device;
  DType dtype;
  Tolerance limit;
};
std::vector<Place> places() {
  std::vector<Place> out{{kCPU, DType::kF64, {1e-12, 1e-14}}, {kCPU, DType::kF32, {1e-4, 1e-5}}};
  if (has_backend(DeviceType::kCUDA)) {
    out.push_back({DeviceType::kCUDA, DType::kF64, {1e-12, 1e-14}});
  }
  return out;
}

/// The tensors of one case, where and as they are wanted.
class Case {
 public:
  Case(std::string id, const Place& place) : id_(std::move(id)), place_(place) {}
  Tensor get(const std::string& name, bool is_leaf = false) const {
    if (!file().has(id_ + "/" + name)) return {};
    const Tensor t = file().at(id_ + "/" + name).to(place_.device).clone();
    if (!is_leaf) return t;
    const Tensor leaf = t.to(place_.dtype);
    leaf.set_requires_grad(true);
    return leaf;
  }
  Tensor leaf(const std::string& name) const { return get(name, true); }
  void load(nn::Module& module) const {
    const std::string prefix = id_ + "/weight.";
    TensorDict weights;
    for (const auto& [name, tensor] : file().tensors()) {
      if (name.starts_with(prefix)) weights.add(name.substr(prefix.size()), tensor);
    }
    module.to(place_.dtype).to(place_.device);
    module.load_state_dict(weights);
  }
  void check(const char* name, const Tensor& got) const {
    const Tensor want = get(name);
    ASSERT_EQ(got.defined(), want.defined()) << name;
    if (!want.defined()) return;
    EXPECT_TRUE(near(got.detach().to(kCPU).to(DType::kF64), want.to(kCPU), place_.limit)) << name;
  }
  void check_gradients(nn::Module& module, const Tensor& x, const RecurrentState& start) const {
    check("grad.x", x.grad());
    if (start.h.defined()) check("grad.h0", start.h.grad());
    if (start.c.defined()) check("grad.c0", start.c.grad());
    for (const auto& [name, p] : module.named_parameters()) {
      check(("grad." + name).c_str(), p.grad());
    }
  }
  /// The product of a result with its cotangent.
  Tensor weighed(const char* name, const Tensor& got) const {
    if (!got.defined()) return zeros({}, {.dtype = place_.dtype, .device = place_.device});
    return sum(got * get(std::string("cot.") + name).to(place_.dtype));
  }

 private:
  std::string id_;
  Place place_;
};

std::unique_ptr<nn::Recurrent> make(const std::string& kind, const Json& torch) {
  const RecurrentOptions o{.in = 4,
                           .hidden = 3,
                           .layers = torch.value("num_layers", 1),
                           .bias = torch.value("bias", true),
                           .bidirectional = torch.value("bidirectional", false),
                           .relu = torch.value("nonlinearity", "tanh") == "relu"};
  if (kind == "RNN") return std::make_unique<nn::RNN>(o);
  if (kind == "LSTM") return std::make_unique<nn::LSTM>(o);
  return std::make_unique<nn::GRU>(o);
}

std::unique_ptr<nn::RecurrentCell> make_cell(const std::string& kind) {
  const nn::RecurrentCellOptions o{.in = 4, .hidden = 3};
  if (kind == "RNN") return std::make_unique<nn::RNNCell>(o);
  if (kind == "LSTM") return std::make_unique<nn::LSTMCell>(o);
  return std::make_unique<nn::GRUCell>(o);
}

TEST(Recurrent, layers_and_cells_agree_with_pytorch) {
  int seen = 0;
  for (const Place& place : places()) {
    for (const Json& j : file().json("cases")) {
      const std::string kind = j["kind"];
      SCOPED_TRACE(kind + " " + j["options"].dump() + " " + place.device.str());
      const Case c(j["id"], place);
      const Tensor x = c.leaf("x");
      const RecurrentState start{.h = c.leaf("h0"), .c = c.leaf("c0")};
      ++seen;
      if (j["cell"]) {
        const auto cell = make_cell(kind);
        c.load(*cell);
        const RecurrentState next = cell->step(x, start);
        c.check("h", next.h);
        c.check("c", next.c);
        (c.weighed("h", next.h) + c.weighed("c", next.c)).backward();
        c.check_gradients(*cell, x, start);
        continue;
      }
      const auto net = make(kind, j["options"]);
      c.load(*net);
      const auto [output, state] = net->run(x, start, c.get("lengths"));
      c.check("out", output);
      c.check("h", state.h);
      c.check("c", state.c);
      (c.weighed("out", output) + c.weighed("h", state.h) + c.weighed("c", state.c)).backward();
      c.check_gradients(*net, x, start);
    }
  }
  EXPECT_GE(seen, 26);
}

TEST(Recurrent, a_sequence_in_two_pieces_is_the_sequence) {
  manual_seed(3);
  nn::LSTM lstm({.in = 5, .hidden = 7, .layers = 2});
  const Tensor x = randn({3, 9, 5});
  const nn::RecurrentResult whole = lstm.run(x);
  const nn::RecurrentResult first = lstm.run(x.narrow(1, 0, 4));
  const nn::RecurrentResult second = lstm.run(x.narrow(1, 4, 5), first.state);
  EXPECT_TRUE(
      near(cat({first.output, second.output}, 1).detach(), whole.output.detach(), {0, 1e-6}));
  EXPECT_TRUE(near(second.state.c.detach(), whole.state.c.detach(), {0, 1e-6}));
  EXPECT_TRUE(
      near(whole.output.select(1, 8).detach(), whole.state.h.select(0, 1).detach(), {0, 0}));
}

TEST(Recurrent, what_stands_in_the_padding_changes_nothing) {
  manual_seed(4);
  nn::GRU gru({.in = 2, .hidden = 3, .layers = 2, .bidirectional = true});
  const Tensor x = randn({3, 4, 2});
  const Tensor lengths = from_vector(std::vector<int64_t>{2, 0, 4}, {3});
  const nn::RecurrentResult a = gru.run(x, {}, lengths);
  x.select(0, 0).narrow(0, 2, 2).fill_(1e30);
  x.select(0, 1).fill_(-std::numeric_limits<double>::infinity());
  const nn::RecurrentResult b = gru.run(x, {}, lengths);
  EXPECT_TRUE(near(b.output.detach(), a.output.detach(), {0, 0}));
  EXPECT_TRUE(near(b.state.h.detach(), a.state.h.detach(), {0, 0}));
  EXPECT_EQ(amax(abs(a.output.select(0, 1))).item(), 0);
  EXPECT_EQ(amax(abs(a.state.h.select(1, 1))).item(), 0);
  gru.zero_grad();
  sum(b.output).backward();
  for (const auto& [name, p] : gru.named_parameters()) {
    EXPECT_TRUE(all(isfinite(p.grad())).item()) << name;
  }
}

TEST(Recurrent, dropout_is_between_layers_and_in_training) {
  manual_seed(5);
  nn::LSTM lstm({.in = 3, .hidden = 16, .layers = 2, .dropout = 0.5});
  const Tensor x = randn({2, 6, 3});
  EXPECT_FALSE(near(lstm(x).detach(), lstm(x).detach(), {0, 1e-6}));
  lstm.eval();
  EXPECT_TRUE(near(lstm(x).detach(), lstm(x).detach(), {0, 0}));
  nn::LSTM one({.in = 3, .hidden = 16, .dropout = 0.5});
  EXPECT_TRUE(near(one(x).detach(), one(x).detach(), {0, 0}));
}

TEST(Recurrent, runs_under_autocast_and_on_an_empty_batch) {
  manual_seed(6);
  nn::LSTM lstm({.in = 8, .hidden = 8});
  const Tensor x = randn({4, 5, 8});
  const Tensor exact = lstm(x).detach();
  {
    const AutocastGuard autocast(DeviceType::kCPU);
    const Tensor y = lstm(x);
    EXPECT_TRUE(near(y.detach().to(DType::kF32), exact, {0, 0.03}));
    sum(y).backward();
  }
  EXPECT_EQ(lstm.parameters()[0].grad().dtype(), DType::kF32);
  EXPECT_EQ(lstm(zeros({0, 5, 8})).sizes(), Shape({0, 5, 8}));
}

TEST(Recurrent, hooks_see_input_and_output) {
  nn::GRU gru({.in = 2, .hidden = 3});
  int calls = 0;
  gru.register_forward_hook([&](nn::Module&, const Tensor& x, const Tensor& y) {
    EXPECT_EQ(x.sizes(), Shape({1, 4, 2}));
    EXPECT_EQ(y.sizes(), Shape({1, 4, 3}));
    ++calls;
    return Tensor();
  });
  gru(ones({1, 4, 2}));
  gru.run(ones({1, 4, 2}));
  EXPECT_EQ(calls, 2);
}

TEST(Recurrent, says_what_does_not_fit) {
  using nn::LSTM, nn::RNN, nn::GRUCell;
  expect_error<ValueError>("in and hidden must be positive", [] { RNN({.in = 0, .hidden = 3}); });
  expect_error<ValueError>("layers must be positive",
                           [] { RNN({.in = 1, .hidden = 3, .layers = 0}); });
  expect_error<ValueError>("dropout: p must be in [0, 1]; got 1.5",
                           [] { RNN({.in = 1, .hidden = 3, .dropout = 1.5}); });
  expect_error<ValueError>("LSTM: relu is a choice of RNN's alone",
                           [] { LSTM({.in = 1, .hidden = 3, .relu = true}); });
  LSTM lstm({.in = 4, .hidden = 3, .layers = 2});
  expect_error<ShapeError>("LSTM: x must be [B, T, 4] with T > 0; got [2, 5, 3]", [&] {
    lstm(zeros({2, 5, 3}));
  });
  expect_error<ShapeError>("with T > 0; got [2, 0, 4]", [&] { lstm(zeros({2, 0, 4})); });
  expect_error<ShapeError>("with T > 0; got undefined", [&] { lstm(Tensor()); });
  const Tensor x = zeros({2, 5, 4});
  expect_error<ShapeError>("a state's h must be [2, 2, 3]; got [1, 2, 3]", [&] {
    lstm.run(x, {.h = zeros({1, 2, 3})});
  });
  expect_error<ShapeError>("a state's c must be [2, 2, 3]; got [2, 3]", [&] {
    lstm.run(x, {.c = zeros({2, 3})});
  });
  expect_error<ShapeError>("lengths must be [2] i64",
                           [&] { lstm.run(x, {}, from_vector(std::vector<int64_t>{1}, {1})); });
  expect_error<ValueError>("lengths must lie in 0..T = 5; got 6", [&] {
    lstm.run(x, {}, from_vector(std::vector<int64_t>{1, 6}, {2}));
  });
  expect_error<ValueError>("got -1", [&] {
    lstm.run(x, {}, from_vector(std::vector<int64_t>{-1, 6}, {2}));
  });
  RNN rnn({.in = 4, .hidden = 3});
  expect_error<ValueError>("RNN: a state's c is for LSTMs", [&] {
    rnn.run(x, {.c = zeros({1, 2, 3})});
  });
  GRUCell cell({.in = 4, .hidden = 3});
  expect_error<ShapeError>("GRUCell: x must be [B, 4]; got [2, 5, 4]", [&] { cell(x); });
  expect_error<ShapeError>("a state's h must be [2, 3]", [&] {
    cell.step(zeros({2, 4}), {.h = zeros({2, 4})});
  });
}

}  // namespace
}  // namespace tarn::golden
