// nn_members_test.cpp - members that die, are replaced, or cannot be made; and what refuses to be
// one.
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "tarn/core/factory.h"
#include "tarn/nn/linear.h"
#include "tarn/nn/sequential.h"
#include "tarn/tests/nn_tools.h"
#include "tarn/tests/temp_folder.h"

namespace tarn::nn {
namespace {

using test::Names;
using test::names_of;

TEST(MembersTest, a_member_without_a_module_is_an_error) {
  EXPECT_MESSAGE(ValueError, Parameter(nullptr, "w", ones({1})), "Parameter: 'w' needs the module");
  EXPECT_MESSAGE(ValueError, Buffer(nullptr, "b", ones({1})), "Buffer: 'b' needs the module");
  Sequential list;
  EXPECT_MESSAGE(ValueError, list.add(std::unique_ptr<Linear>()),
                 "Sequential: a null pointer is no module; got it as '0'");
  EXPECT_EQ(list.size(), 0u);
}

TEST(MembersTest, a_module_has_one_place) {
  Module root;
  auto fc = std::make_unique<Linear>(&root, "fc", LinearOptions{.in = 2, .out = 3});
  Sequential list;
  EXPECT_MESSAGE(ValueError, list.add(std::move(fc)),
                 "Linear 'fc' is a member already and cannot become '0' of Sequential");
  EXPECT_TRUE(root.children().empty());  // it is gone
  EXPECT_TRUE(list.children().empty());
}

TEST(MembersTest, members_that_die_first_leave_their_module) {
  Module root;
  {
    Linear fc(&root, "fc", {.in = 2, .out = 3});
    Parameter scale(&root, "scale", ones({4}));
    Buffer table(&root, "table", ones({4}));
    EXPECT_EQ(names_of(root.state_dict()), (Names{"scale", "table", "fc.weight", "fc.bias"}));
  }
  EXPECT_EQ(root.num_parameters(), 0);
  EXPECT_EQ(root.state_dict().size(), 0u);
  EXPECT_EQ(root.named_modules().size(), 1u);
}

TEST(MembersTest, members_may_outlive_their_module) {
  std::unique_ptr<Linear> fc;
  {
    Module root;
    fc = std::make_unique<Linear>(&root, "fc", LinearOptions{.in = 2, .out = 3});
  }
  EXPECT_EQ((*fc)(ones({1, 2})).sizes(), (Shape{1, 3}));
  Sequential list;  // it has no place now
  EXPECT_EQ(list.add(std::move(fc)).path(), "0");
}

class Replaceable : public Module {
 public:
  std::unique_ptr<Linear> head =
      std::make_unique<Linear>(this, "head", LinearOptions{.in = 2, .out = 10});
  std::optional<Linear> extra;
};

TEST(MembersTest, a_head_is_replaced_by_another_of_its_name) {
  Replaceable net;
  net.head.reset();
  net.head = std::make_unique<Linear>(&net, "head", LinearOptions{.in = 2, .out = 3});
  EXPECT_EQ(net.num_parameters(), 2 * 3 + 3);
  net.extra.emplace(&net, "extra", LinearOptions{.in = 2, .out = 1});
  net.extra.emplace(&net, "extra", LinearOptions{.in = 2, .out = 4, .bias = false});
  EXPECT_EQ(names_of(net.named_parameters()), (Names{"head.weight", "head.bias", "extra.weight"}));
  EXPECT_EQ(net.state_dict()["extra.weight"].sizes(), (Shape{4, 2}));
}

TEST(MembersTest, a_member_that_throws_when_made_is_none) {
  Replaceable net;
  EXPECT_MESSAGE(ValueError, net.extra.emplace(&net, "extra", LinearOptions{.in = 0, .out = 1}),
                 "in and out must be positive");
  EXPECT_EQ(names_of(net.named_parameters()), (Names{"head.weight", "head.bias"}));
  EXPECT_EQ(net.named_modules().size(), 2u);
  net.extra.emplace(&net, "extra", LinearOptions{.in = 1, .out = 1});
  EXPECT_EQ(net.named_modules().size(), 3u);
}

}  // namespace
}  // namespace tarn::nn
