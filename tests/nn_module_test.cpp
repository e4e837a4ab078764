// nn_module_test.cpp - registration by declaration, state, modes, hooks.
#include <cmath>
#include <sstream>

#include <gtest/gtest.h>

#include "tarn/autograd/anomaly.h"
#include "tarn/autograd/autocast.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/models/mlp.h"
#include "tarn/nn/module.h"
#include "tarn/nn/norm.h"
#include "tarn/nn/sequential.h"
#include "tarn/tests/nn_tools.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::nn {
namespace {

using test::Names;
using test::names_of;

class Net : public Module {
 public:
  using Module::Module;
  Linear fc{this, "fc", {.in = 2, .out = 3}};
  Parameter scale{this, "scale", ones({3})};
  BatchNorm1d bn{this, "bn", {.features = 3}};
  Buffer table{this, "table", zeros({2}), BufferKind::kNotSaved};
  Parameter none{this, "none", Tensor()};
  Tensor forward(const Tensor& x) override { return bn(mul(fc(x), scale)); }
};

class Outer : public Module {
 public:
  Net net{this, "net"};
  Linear head{this, "head", {.in = 3, .out = 1, .bias = false}};
};

TEST(ModuleTest, a_move_to_where_it_is_leaves_saved_values_alone) {
  Linear net({.in = 3, .out = 2});
  const Tensor loss = sum(square(net(ones({1, 3}).set_requires_grad())));
  net.to(kCPU);
  net.to(DType::kF32);
  loss.backward();
  EXPECT_TRUE(net.weight.grad().defined());
}

TEST(ModuleTest, declaring_a_member_registers_it) {
  Outer outer;
  EXPECT_EQ(names_of(outer.named_parameters()),
            (Names{"net.scale", "net.fc.weight", "net.fc.bias", "net.bn.weight", "net.bn.bias",
                   "head.weight"}));
  EXPECT_EQ(names_of(outer.named_buffers()),
            (Names{"net.table", "net.bn.running_mean", "net.bn.running_var",
                   "net.bn.num_batches_tracked"}));
  EXPECT_EQ(outer.num_parameters(), 3 + 6 + 3 + 3 + 3 + 3);
  Names modules;
  for (const auto& [name, module] : outer.named_modules()) modules.push_back(name);
  EXPECT_EQ(modules, (Names{"", "net", "net.fc", "net.bn", "head"}));
  for (const Tensor& p : outer.parameters()) EXPECT_TRUE(p.requires_grad() && p.is_leaf());
}

TEST(ModuleTest, state_dict_has_what_is_saved_and_shares_memory) {
  Net net;
  const TensorDict state = net.state_dict();
  EXPECT_EQ(names_of(state),
            (Names{"scale", "fc.weight", "fc.bias", "bn.weight", "bn.bias", "bn.running_mean",
                   "bn.running_var", "bn.num_batches_tracked"}));
  EXPECT_FALSE(state["scale"].requires_grad());
  net.scale.detach().fill_(7);
  EXPECT_EQ(state["scale"].to_vector<int>(), (std::vector<int>{7, 7, 7}));
}

TEST(ModuleTest, refuses_bad_names) {
  class Twice : public Module {
   public:
    Parameter a{this, "a", ones({1})}, b{this, "a", ones({1})};
  };
  class Dotted : public Module {
   public:
    Parameter a{this, "a.b", ones({1})};
  };
  EXPECT_MESSAGE(ValueError, Twice(), "two members are named 'a'");
  EXPECT_MESSAGE(ValueError, Dotted(), "must not be empty or hold a dot; got 'a.b'");
}

TEST(ModuleTest, load_lists_everything_that_does_not_fit_and_changes_nothing) {
  Net net;
  const std::vector<float> before = net.fc.bias.to_vector<float>();
  TensorDict dict;
  dict.add("fc.weight", zeros({3, 2}));
  dict.add("fc.bias", zeros({4}));
  dict.add("scale", zeros({3}));
  dict.add("other", zeros({1}));
  EXPECT_MESSAGE(ShapeError, net.load_state_dict(dict),
                 "load_state_dict: Net: other shapes: fc.bias is [3], given [4]; missing: "
                 "bn.weight, bn.bias, bn.running_mean, bn.running_var; unexpected: other");
  EXPECT_EQ(net.fc.bias.to_vector<float>(), before);
  EXPECT_EQ(net.scale.to_vector<int>(), (std::vector<int>{1, 1, 1}));
  EXPECT_MESSAGE(ShapeError, net.load_state_dict(dict, false), "fc.bias is [3], given [4]");

  const LoadReport report = net.load_state_dict({{"scale", zeros({3})}, {"x", zeros({1})}}, false);
  EXPECT_EQ(report.unexpected, Names{"x"});
  EXPECT_EQ(report.missing.size(), 6u);  // all but scale and the optional counter
  EXPECT_EQ(net.scale.to_vector<int>(), (std::vector<int>{0, 0, 0}));
  EXPECT_MESSAGE(ValueError, net.load_state_dict({}), "missing: scale, fc.weight");
  EXPECT_MESSAGE(ValueError, net.load_state_dict({{"fc.bias", Tensor()}}),
                 "load_state_dict: Net: 'fc.bias' is undefined");
}

TEST(ModuleTest, load_converts_dtypes_and_takes_the_wrapper_prefix_off) {
  Net from, to;
  from.scale.detach().fill_(0.5);
  TensorDict wrapped;
  for (const auto& [name, tensor] : from.state_dict()) {
    wrapped.add("module." + name, is_floating(tensor.dtype()) ? tensor.to(DType::kF64) : tensor);
  }
  to.load_state_dict(wrapped);
  EXPECT_EQ(to.scale.dtype(), DType::kF32);
  EXPECT_EQ(to.scale.to_vector<float>(), (std::vector<float>{0.5f, 0.5f, 0.5f}));
  EXPECT_EQ(to.fc.weight.to_vector<float>(), from.fc.weight.to_vector<float>());
}

TEST(ModuleTest, tied_parameters_count_once_and_are_saved_under_both_names) {
  class Tied : public Module {
   public:
    Tied() { b.weight.tie(a.weight); }
    Linear a{this, "a", {.in = 2, .out = 2, .bias = false}};
    Linear b{this, "b", {.in = 2, .out = 2, .bias = false}};
  } tied;
  EXPECT_EQ(names_of(tied.named_parameters()), Names{"a.weight"});
  EXPECT_EQ(names_of(tied.state_dict()), (Names{"a.weight", "b.weight"}));
  tied.to(DType::kF64);
  EXPECT_TRUE(tied.a.weight.is_same(tied.b.weight));
  EXPECT_EQ(tied.b.weight.dtype(), DType::kF64);
}

TEST(ModuleTest, to_keeps_the_tensors_that_others_hold) {
  Net net;
  const std::vector<Tensor> held = net.parameters();
  net.scale.set_grad(ones({3}));
  net.to(DType::kF64);
  EXPECT_TRUE(held[0].is_same(net.scale));
  EXPECT_EQ(held[0].dtype(), DType::kF64);
  EXPECT_EQ(held[0].grad().dtype(), DType::kF64);
  EXPECT_TRUE(held[0].requires_grad() && held[0].is_leaf());
  EXPECT_EQ(net.bn.running_var.dtype(), DType::kF64);
  EXPECT_EQ(net.bn.num_batches_tracked.dtype(), DType::kI64);
  net(ones({4, 2}, {.dtype = DType::kF64})).sum().backward();
  EXPECT_MESSAGE(DTypeError, net.to(DType::kI64), "parameters must be floating; got i64");
}

// Who keeps something made from a parameter asks by the version whether it is stale.
TEST(ModuleTest, to_takes_the_version_on) {
  Net net;
  const std::function<void()> conversions[] = {
      [&] { net.to(DType::kF64); }, [&] { net.to(DType::kF32); },
      [&] { net.scale.detach().fill_(2); }, [&] { net.to(DType::kBF16); },
      [&] { net.to(available_devices().back()); }};
  net.to(kCPU);
  for (const auto& convert : conversions) {
    const uint32_t before = net.scale.version();
    const Ref<Storage> storage = net.scale.storage();
    convert();
    if (net.scale.storage() == storage && net.scale.device() == kCPU) continue;
    EXPECT_GT(net.scale.version(), before);
  }
}

TEST(ModuleTest, autocast_casts_a_converted_weight_anew) {
  Linear layer({.in = 1, .out = 1, .bias = false});
  layer.weight.detach().fill_(1);
  const AutocastGuard autocast(DeviceType::kCPU, DType::kBF16);
  const Tensor x = ones({1, 1});
  layer.to(DType::kF64);
  layer.to(DType::kF32);
  EXPECT_EQ(layer(x).item(), 1);
  layer.to(DType::kF64);
  layer.weight.detach().fill_(2);
  layer.to(DType::kF32);
  EXPECT_EQ(layer(x).item(), 2);
}

TEST(ModuleTest, autocast_casts_a_moved_weight_anew) {
  Linear layer({.in = 2, .out = 2});
  const AutocastGuard cpu(DeviceType::kCPU, DType::kBF16), cuda(DeviceType::kCUDA, DType::kBF16);
  std::vector<Device> devices = available_devices();
  devices.push_back(kCPU);
  for (const Device device : devices) {
    layer.to(device);
    EXPECT_EQ(layer(ones({1, 2}, {.device = device})).device(), device);
  }
}

TEST(ModuleTest, modes_reach_the_whole_tree) {
  Outer outer;
  EXPECT_TRUE(outer.net.bn.training());
  outer.eval();
  EXPECT_FALSE(outer.net.bn.training());
  outer.train();
  EXPECT_TRUE(outer.net.bn.training());
  outer.requires_grad_(false);
  for (const Tensor& p : outer.parameters()) EXPECT_FALSE(p.requires_grad());
  int visited = 0;
  outer.apply([&](Module&) { ++visited; });
  EXPECT_EQ(visited, 5);
}

TEST(ModuleTest, an_eval_scope_gives_each_module_back_the_mode_it_was_in) {
  Outer outer;
  outer.net.bn.eval();  // frozen statistics, as in finetuning
  const auto modes = [&] {
    std::string text;
    for (const auto& [name, module] : outer.named_modules()) text += module->training() ? "t" : "e";
    return text;  // outer, net, fc, bn, head
  };
  EXPECT_EQ(modes(), "tttet");
  {
    const Module::EvalScope evaluation(outer);
    EXPECT_EQ(modes(), "eeeee");
    { const Module::EvalScope inner(outer.net); }
    EXPECT_EQ(modes(), "eeeee");
  }
  EXPECT_EQ(modes(), "tttet");
  const auto fails = [&] {
    const Module::EvalScope evaluation(outer);
    outer(ones({1, 2}));
  };
  EXPECT_MESSAGE(UnsupportedError, fails(), "Outer: has no forward of one tensor");
  EXPECT_EQ(modes(), "tttet");
}

TEST(ModuleTest, zero_grad_drops_gradients) {
  Linear layer({.in = 2, .out = 2});
  layer(ones({1, 2})).sum().backward();
  EXPECT_TRUE(layer.weight.grad().defined());
  layer.zero_grad();
  EXPECT_FALSE(layer.weight.grad().defined());
}

TEST(ModuleTest, hooks_see_and_replace_values_until_removed) {
  Identity id;
  const auto pre = id.register_forward_pre_hook([](Module&, const Tensor& x) { return x + 1; });
  const auto post =
      id.register_forward_hook([](Module&, const Tensor& x, const Tensor& y) { return x + y; });
  int calls = 0;
  id.register_forward_hook([&](Module& m, const Tensor&, const Tensor&) {
    EXPECT_EQ(m.kind(), "Identity");
    ++calls;
    return Tensor();
  });
  EXPECT_EQ(id(ones({1})).item(), 4);  // (1 + 1) + (1 + 1)
  id.remove_hook(pre);
  EXPECT_EQ(id(ones({1})).item(), 2);
  id.remove_hook(post);
  EXPECT_EQ(id(ones({1})).item(), 1);
  EXPECT_EQ(calls, 3);
}

TEST(ModuleTest, hooks_may_remove_themselves_and_add_others) {
  Identity id;
  std::vector<int> calls;
  int64_t first = 0, before = 0;
  before = id.register_forward_pre_hook([&](Module& m, const Tensor&) {
    calls.push_back(0);
    m.remove_hook(before);
    return Tensor();
  });
  first = id.register_forward_hook([&](Module& m, const Tensor&, const Tensor&) {
    m.remove_hook(first);
    m.register_forward_hook([&](Module&, const Tensor&, const Tensor&) {
      calls.push_back(3);
      return Tensor();
    });
    calls.push_back(1);
    return Tensor();
  });
  id.register_forward_hook([&](Module&, const Tensor&, const Tensor&) {
    calls.push_back(2);
    return Tensor();
  });
  id(ones({1}));
  EXPECT_EQ(calls, (std::vector<int>{0, 1, 2}));
  id(ones({1}));
  EXPECT_EQ(calls, (std::vector<int>{0, 1, 2, 2, 3}));
}

TEST(ModuleTest, a_hook_is_a_function) {
  Net net;
  EXPECT_MESSAGE(ValueError, net.register_forward_hook(nullptr),
                 "register_forward_hook: a function is needed");
  EXPECT_MESSAGE(ValueError, net.register_forward_pre_hook(nullptr),
                 "register_forward_pre_hook: a function is needed");
}

TEST(ModuleTest, says_when_it_has_no_forward) {
  ModuleList<> list;
  EXPECT_MESSAGE(UnsupportedError, list(ones({1})), "ModuleList: has no forward of one tensor");
}

TEST(ModuleTest, prints_the_tree) {
  Outer outer;
  std::ostringstream out;
  out << outer;
  EXPECT_EQ(out.str(),
            "Outer\n  net: Net\n    fc: Linear(2, 3)\n    bn: BatchNorm1d(3)\n"
            "  head: Linear(3, 1, no bias)\n");
}

class Root : public Module {
 public:
  using Module::Module;
  Tensor forward(const Tensor& x) override { return sqrt(x); }  // its slope at 0 is infinite
};

class Holder : public Module {
 public:
  using Module::Module;
  Root bad{this, "bad"};
  Tensor forward(const Tensor& x) override { return bad(x) * 2; }
};

class Model : public Module {
 public:
  Holder block{this, "block"};
  Tensor forward(const Tensor& x) override { return block(x).sum(); }
};

TEST(ModuleTest, anomaly_mode_names_the_module_that_made_the_operation) {
  const AnomalyGuard anomaly;
  Model model;
  Tensor x = tensor({1, 4, 0});
  x.set_requires_grad();
  const Tensor loss = model(x);
  EXPECT_MESSAGE(AutogradError, loss.backward(), "the backward of sqrt in block.bad gave inf");
}

// Lists of layers are not called themselves, and batch norm is called by another name.
class Stack : public Module {
 public:
  struct Layer : Module {
    Linear fc{this, "fc", {.in = 2, .out = 2}};
    BatchNorm1d bn{this, "bn", {.features = 2}};
    Tensor forward(const Tensor& x) override { return bn.relu(fc(x)); }
  };
  ModuleList<Layer> layers{this, "layers"};
  Stack() {
    for (int i = 0; i < 2; ++i) layers.add<Layer>();
  }
  Tensor forward(const Tensor& x) override { return layers[1](layers[0](x)); }
};

TEST(ModuleTest, anomaly_mode_gives_the_whole_path_of_a_module_in_a_list) {
  const AnomalyGuard anomaly({.forward = true});
  Stack model;
  EXPECT_EQ(model.layers[1].bn.path(), "layers.1.bn");
  EXPECT_EQ(model.path(), "");
  const Tensor x = tensor({1, 2, 3, 4}, {2, 2});
  EXPECT_NO_THROW(model(x));
  model.layers[1].bn.weight.detach().fill_(NAN);
  EXPECT_MESSAGE(AutogradError, model(x),
                 " in layers.1.bn gave nan, first at index [0, 0] of [2, 2]");
}

TEST(SequentialTest, numbers_and_runs_its_modules) {
  Sequential net;
  Linear& first = net.add<Linear>({.in = 2, .out = 3});
  net.add<ReLU>();
  net.add<Linear>({.in = 3, .out = 1});
  first.weight.detach().fill_(1);
  first.bias.detach().fill_(-2);
  EXPECT_EQ(names_of(net.named_parameters()), (Names{"0.weight", "0.bias", "2.weight", "2.bias"}));
  const Tensor hidden = net[1](net[0](tensor({1, 2, 0, 0}, {2, 2})));
  EXPECT_EQ(hidden.to_vector<int>(), (std::vector<int>{1, 1, 1, 0, 0, 0}));  // 1 + 2 - 2, 0 - 2 cut
  EXPECT_EQ(net(ones({5, 2})).sizes(), (Shape{5, 1}));
  EXPECT_MESSAGE(IndexError, net[3], "Sequential: no module 3; there are 3");
}

TEST(MlpTest, chains_its_layers) {
  models::Mlp mlp({.sizes = {32, 64, 10}});
  EXPECT_EQ(mlp.num_parameters(), 32 * 64 + 64 + 64 * 10 + 10);
  EXPECT_EQ(names_of(mlp.named_parameters())[2], "layers.1.weight");
  EXPECT_EQ(mlp(ones({4, 1, 4, 8})).sizes(), (Shape{4, 10}));
  EXPECT_MESSAGE(ValueError, models::Mlp({.sizes = {3}}), "at least inputs and outputs");
}

}  // namespace
}  // namespace tarn::nn
