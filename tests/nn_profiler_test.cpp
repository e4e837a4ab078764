// nn_profiler_test.cpp - Profiler: schedule, table, trace; forward and backward, several threads.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "temp_folder.h"
#include "tests_throws.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tarn/autograd/functions.h"
#include "tarn/core/error.h"
#include "tarn/core/factory.h"
#include "tarn/core/profiler.h"
#include "tarn/core/random.h"
#include "tarn/nn/activation.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/models/mlp.h"
#include "tarn/nn/norm.h"
#include "tarn/optim/sgd.h"

namespace tarn {
namespace {

using nlohmann::json;

std::string actions(const ProfilerSchedule& schedule, int64_t steps) {
  std::string text;
  for (int64_t i = 0; i < steps; ++i) {
    text += "-wrR"[static_cast<int>(profiler_action(schedule, i))];
  }
  return text;
}

TEST(ProfilerTest, the_schedule_is_that_of_pytorch) {
  EXPECT_EQ(actions({.wait = 1, .warmup = 1, .active = 2}, 9), "-wrR-wrR-");
  EXPECT_EQ(actions({.wait = 1, .warmup = 1, .active = 2, .repeat = 1}, 9), "-wrR-----");
  EXPECT_EQ(actions({.wait = 2, .warmup = 0, .active = 1, .repeat = 2, .skip_first = 3}, 11),
            "-----R--R--");
  EXPECT_EQ(actions({}, 3), "RRR");
  EXPECT_THROWS_WITH(Profiler({.schedule = ProfilerSchedule{.active = 0}}), ValueError,
                     "a schedule needs at least one active step");
  EXPECT_THROWS_WITH(Profiler({.schedule = ProfilerSchedule{.wait = -1}}), ValueError, "wait -1");
}

const ProfileRow* find(const std::vector<ProfileRow>& rows, const std::string& name) {
  for (const ProfileRow& row : rows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

struct Work {
  nn::models::Mlp net{{.sizes = {8, 16, 4}}};
  optim::SGD sgd{net.parameters(), {.lr = 0.01}};
  Tensor x = randn({32, 8}), y = zeros({32}, {.dtype = DType::kI64});
  void step() {
    sgd.zero_grad();
    cross_entropy(net(x), y).backward();
    sgd.step();
  }
};

TEST(ProfilerTest, only_active_steps_count_and_each_cycle_is_handed_over) {
  Work work;
  int cycles = 0;
  std::vector<int64_t> numbers;
  Profiler profiler({.schedule = ProfilerSchedule{.wait = 1, .warmup = 1, .active = 2, .repeat = 2},
                     .on_trace_ready = [&](Profiler& p) {
                       ++cycles;
                       for (const ProfileStep& s : p.profile().steps) numbers.push_back(s.number);
                       const auto rows = p.rows();
                       ASSERT_TRUE(find(rows, "linear"));
                       EXPECT_EQ(find(rows, "linear")->calls, 4);  // two layers, two steps
                     }});
  std::string recording;
  for (int i = 0; i < 10; ++i) {
    recording += profiler.recording() ? "1" : "0";
    work.step();
    profiler.step();
  }
  profiler.stop();
  EXPECT_EQ(recording, "0011001100");
  EXPECT_EQ(cycles, 2);
  EXPECT_EQ(numbers, (std::vector<int64_t>{2, 3, 6, 7}));
  EXPECT_FALSE(detail::listening());
}

TEST(ProfilerTest, forward_backward_and_optimizer_are_told_apart) {
  Work work;
  work.step();
  Profiler profiler;
  work.step();
  profiler.stop();
  const auto rows = profiler.rows();
  for (const char* name : {"linear", "linear backward", "cross_entropy", "cross_entropy backward",
                           "sgd", "accumulate_grad backward"}) {
    ASSERT_TRUE(find(rows, name)) << name;
    EXPECT_GT(find(rows, name)->calls, 0) << name;
  }
  EXPECT_EQ(find(rows, "linear")->flops, 2.0 * 32 * (8 * 16 + 16 * 4));
  // The input needs no gradient: one product less in the first layer.
  double backward = 0;
  for (const ProfileRow& row : rows) backward += row.flops;
  EXPECT_EQ(backward - find(rows, "linear")->flops, 2.0 * 32 * (8 * 16 + 2 * 16 * 4));
}

// Times as written down, not as measured.
TEST(ProfilerTest, self_time_leaves_out_what_is_inside_and_recursion_counts_once) {
  Profiler profiler;
  {
    const OpScope a("a");
    const OpScope b("b");
    const OpScope again("a");
  }
  profiler.stop();
  const Profile& p = profiler.profile();
  ASSERT_EQ(p.events.size(), 3u);
  const ProfileEvent &inner = p.events[0], &b = p.events[1], &outer = p.events[2];
  EXPECT_STREQ(b.name, "b");
  EXPECT_EQ(b.self, (b.end - b.start) - (inner.end - inner.start));
  EXPECT_EQ(outer.self, (outer.end - outer.start) - (b.end - b.start));
  const auto rows = profiler.rows({.sort_by = "name"});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].calls, 2);
  EXPECT_DOUBLE_EQ(rows[0].total_s, static_cast<double>(outer.end - outer.start) * 1e-9);
  EXPECT_DOUBLE_EQ(rows[0].self_s, static_cast<double>(outer.self + inner.self) * 1e-9);
}

TEST(ProfilerTest, the_table_sorts_by_every_column_and_names_them) {
  Work work;
  Profiler profiler({.shapes = true});
  work.step();
  profiler.step();
  profiler.stop();
  const std::pair<const char*, double (*)(const ProfileRow&)> columns[] = {
      {"self", [](const ProfileRow& r) { return r.self_s; }},
      {"total", [](const ProfileRow& r) { return r.total_s; }},
      {"calls", [](const ProfileRow& r) { return static_cast<double>(r.calls); }},
      {"mean", [](const ProfileRow& r) { return r.total_s / static_cast<double>(r.calls); }},
      {"bytes", [](const ProfileRow& r) { return r.bytes; }},
      {"flops", [](const ProfileRow& r) { return r.flops; }},
      {"memory", [](const ProfileRow& r) { return r.allocated; }}};
  for (const auto& [column, value] : columns) {
    const auto rows = profiler.rows({.sort_by = column});
    ASSERT_GT(rows.size(), 5u);
    for (size_t i = 1; i < rows.size(); ++i)
      EXPECT_GE(value(rows[i - 1]), value(rows[i])) << column;
  }
  EXPECT_THROWS_WITH(profiler.table({.sort_by = "speed"}), ValueError,
                     "no column 'speed'; expected self, total");
  const std::string table = profiler.table({.limit = 3});
  EXPECT_NE(table.find("self ms"), std::string::npos) << table;
  EXPECT_NE(table.find(" more)"), std::string::npos) << table;
  EXPECT_NE(table.find("mean of 1 steps"), std::string::npos) << table;
  const auto shaped = profiler.rows({.sort_by = "name", .by_shape = true});
  const ProfileRow* linear = find(shaped, "linear");
  ASSERT_TRUE(linear);
  EXPECT_EQ(linear->calls, 1);  // one for each combination of sizes
  EXPECT_NE(profiler.table({.by_shape = true}).find("[32, 8]"), std::string::npos);
  EXPECT_TRUE(find(profiler.rows({.modules = true}), "(model)"));
}

json trace_of(const Profiler& profiler) {
  std::ostringstream out;
  profiler.write_trace(out);
  return json::parse(out.str());  // throws on what is not JSON
}

// Slices of a lane must nest: each begins after the end of the one before, or ends within it.
void expect_nested(const json& events) {
  std::map<int, std::vector<std::pair<double, double>>> lanes;
  for (const json& e : events) {
    if (e.at("ph") == "X") lanes[e.at("tid")].emplace_back(e.at("ts"), e.at("dur"));
  }
  for (auto& [tid, slices] : lanes) {
    std::sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<double> open;
    for (const auto& [start, length] : slices) {
      while (!open.empty() && open.back() <= start) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(start + length, open.back() + 1e-6);
      }
      open.push_back(start + length);
    }
  }
}

TEST(ProfilerTest, the_trace_is_valid_json_with_lanes_of_operations_steps_and_memory) {
  Work work;
  Profiler profiler({.shapes = true});
  for (int i = 0; i < 2; ++i) {
    work.step();
    profiler.step();
  }
  std::thread([] { const Tensor x = ones({64}) + ones({64}); }).join();
  profiler.stop();
  const json trace = trace_of(profiler);
  EXPECT_EQ(trace.at("displayTimeUnit"), "ms");
  EXPECT_GT(trace.at("baseTimeNanoseconds").get<int64_t>(), 0);
  std::map<std::string, int> names, phases;
  std::map<std::string, std::set<int>> arrows;
  std::set<int> lanes;
  std::set<std::string> dims;
  std::set<int64_t> leaves;
  for (const json& e : trace.at("traceEvents")) {
    ++names[e.at("name")];
    ++phases[e.at("ph")];
    EXPECT_GE(e.at("ts").get<double>(), 0);
    EXPECT_GT(e.at("tid").get<int>(), 0);
    if (e.at("name") == "fwdbwd") arrows[e.at("ph")].insert(e.at("id").get<int>());
    if (e.at("ph") == "X" && e.at("cat") == "cpu_op") lanes.insert(e.at("tid").get<int>());
    if (e.at("name") == "accumulate_grad backward") {
      leaves.insert(e.at("args").at("Sequence number").get<int64_t>());
    }
    if (e.at("name") == "linear") {
      dims.insert(e.at("args").at("Input Dims").dump());
      EXPECT_GT(e.at("args").at("FLOPs").get<int64_t>(), 0);
      EXPECT_GT(e.at("args").at("Sequence number").get<int64_t>(), 0);
    }
  }
  EXPECT_EQ(names["ProfilerStep#0"] + names["ProfilerStep#1"], 2);
  EXPECT_EQ(names["linear"], 4);
  EXPECT_EQ(names["linear backward"], 4);
  // Of each layer the input, the weight as the product takes it, the bias and the output.
  EXPECT_EQ(dims,
            (std::set<std::string>{"[[32,8],[8,16],[16],[32,16]]", "[[32,16],[16,4],[4],[32,4]]"}));
  EXPECT_GT(names["[memory]"], 10);
  EXPECT_EQ(names["[memory]"], phases["C"]);
  EXPECT_EQ(lanes.size(), 2u);
  EXPECT_EQ(leaves.size(), 4u);  // two weights, two biases
  EXPECT_GE(arrows["s"].size(), 6u);
  EXPECT_EQ(arrows["s"], arrows["f"]);
  expect_nested(trace.at("traceEvents"));
}

TEST(ProfilerTest, names_with_quotes_and_control_characters_stay_valid_json) {
  Profiler profiler;
  { const ProfileRange range("a \"quoted\" \\ name\n\x01 \xff end"); }
  profiler.stop();
  bool found = false;
  const json trace = trace_of(profiler);
  for (const json& e : trace.at("traceEvents")) {
    found |= e.at("name") == "a \"quoted\" \\ name \xEF\xBF\xBD end";
  }
  EXPECT_TRUE(found);
}

TEST(ProfilerTest, an_empty_profile_is_a_valid_trace_and_table) {
  Profiler profiler({.schedule = ProfilerSchedule{.wait = 5}});
  profiler.stop();
  EXPECT_TRUE(trace_of(profiler).contains("traceEvents"));
  EXPECT_NE(profiler.table().find("operation"), std::string::npos);
}

TEST(ProfilerTest, memory_totals_end_at_what_is_allocated) {
  const Tensor before = ones({1000});
  Profiler profiler;
  const Tensor kept = ones({5000});
  { const Tensor temporary = ones({1 << 18}); }
  profiler.stop();
  const auto& memory = profiler.profile().memory;
  ASSERT_GE(memory.size(), 3u);
  EXPECT_EQ(memory.back().total, memory_stats().allocated);
  int64_t sum = 0, highest = 0;
  for (const ProfileMemory& m : memory) {
    sum += m.bytes;
    highest = std::max(highest, m.total);
  }
  EXPECT_EQ(sum, 20000);
  EXPECT_EQ(highest, memory_stats().allocated + (4 << 18));
}

TEST(ProfilerTest, events_beyond_the_limit_are_counted_and_left_out) {
  Profiler profiler({.memory = false, .max_events = 10});
  for (int i = 0; i < 25; ++i) const OpScope op("op");
  profiler.stop();
  EXPECT_EQ(profiler.profile().events.size(), 10u);
  EXPECT_EQ(profiler.profile().left_out, 15u);
  EXPECT_NE(profiler.table().find("15 events were left out"), std::string::npos);
}

TEST(ProfilerTest, two_profilers_and_several_threads_record_at_the_same_time) {
  Profiler outer;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) const OpScope op("in a thread");
    });
  }
  {
    Profiler inner;
    const OpScope op("in both");
  }
  for (std::thread& thread : threads) thread.join();
  outer.stop();
  const auto rows = outer.rows();
  ASSERT_TRUE(find(rows, "in a thread"));
  EXPECT_EQ(find(rows, "in a thread")->calls, 300);
  EXPECT_TRUE(find(rows, "in both"));
  EXPECT_GE(outer.profile().threads, 2);  // a thread may get the number of one that has ended
  EXPECT_LE(outer.profile().threads, 4);
}

TEST(ProfilerTest, modules_are_named_by_path_also_when_called_by_other_names) {
  struct Net : nn::Module {
    nn::Linear fc{this, "fc", {.in = 4, .out = 4}};
    nn::BatchNorm1d bn{this, "bn", {.features = 4}};
    Tensor forward(const Tensor& x) override { return bn.relu(fc(x)); }
  } net;
  Profiler profiler;
  net(randn({8, 4}));
  profiler.stop();
  const auto rows = profiler.rows({.sort_by = "name", .modules = true});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].name, "(model)");
  EXPECT_EQ(rows[1].name, "bn");
  EXPECT_EQ(rows[2].name, "fc");
}

TEST(ProfilerTest, fused_calls_of_modules_are_named_as_well) {
  struct Net : nn::Module {
    nn::Linear fc{this, "fc", {.in = 4, .out = 4}};
    nn::LayerNorm ln{this, "ln", {.shape = {4}}};
    nn::RMSNorm rms{this, "rms", {.size = 4}};
    nn::Dropout drop{this, "drop", {.p = 0.5}};
    Tensor forward(const Tensor& x) override {
      return drop.add(rms.add(ln.add(fc.gelu(x), x).y, x).y, x);
    }
  } net;
  Profiler profiler;
  net(randn({8, 4}));
  profiler.stop();
  std::vector<std::string> names;
  for (const ProfileRow& row : profiler.rows({.sort_by = "name", .modules = true})) {
    names.push_back(row.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"(model)", "drop", "fc", "ln", "rms"}));
}

TEST(ProfilerTest, a_trace_that_cannot_be_written_is_one_clear_error) {
  test::TempFolder folder;
  Profiler profiler;
  profiler.stop();
  profiler.save_trace(folder / "trace.json");
  std::ifstream in(folder / "trace.json");
  EXPECT_TRUE(json::parse(in).contains("traceEvents"));
  EXPECT_THROWS_WITH(profiler.save_trace(folder / "no/such/folder/trace.json"), FileError,
                     "no/such/folder");
}

}  // namespace
}  // namespace tarn
