// op_table_main.cpp - collects the rows, checks that none is missing, and runs them.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "op_table.h"
#include <gtest/gtest.h>

namespace tarn::optable {
namespace {

const Table& table() {
  static const Table instance = [] {
    Table t;
    add_elementwise_rows(t);
    add_activation_rows(t);
    add_logic_rows(t);
    add_shape_rows(t);
    add_matmul_rows(t);
    add_linalg_rows(t);
    add_conv_rows(t);
    add_reduce_rows(t);
    add_order_rows(t);
    add_pool_rows(t);
    add_norm_rows(t);
    add_loss_rows(t);
    add_index_rows(t);
    add_join_rows(t);
    add_random_rows(t);
    add_attention_rows(t);
    return t;
  }();
  return instance;
}

// Names of the functions that a header declares at the start of a line, and of those in its X-macro
// lists.
std::set<std::string> declared_in(const std::filesystem::path& header) {
  std::ifstream file(header);
  std::stringstream buffer;
  buffer << file.rdbuf();
  const std::string text = buffer.str();
  std::set<std::string> names;
  const std::regex function(
      "(?:^|\n)(?:inline )?(?:const )?(?:Tensor|void|bool|std::[a-z]+<[^;{}()]*>)&? "
      "([a-z_0-9]+)\\(");
  const std::regex listed("X\\(\\s*[A-Z]\\w*,\\s*([a-z_0-9]+)\\)");
  for (const std::regex& pattern : {function, listed}) {
    for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
      names.insert((*it)[1]);
    }
  }
  names.erase("name");  // the placeholder of the lists
  return names;
}

TEST(OpTableCoverage, every_declared_function_has_a_row_or_a_reason) {
  std::set<std::string> covered, declared;
  for (const Row& row : table().rows()) covered.insert(row.name.substr(0, row.name.find('/')));
  std::map<std::string, std::string> exempt;
  for (const auto& [name, reason] : table().exempted()) exempt[name] = reason;
  const std::filesystem::path folder = std::filesystem::path(TARN_SOURCE_DIR) / "autograd";
  int headers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with("functions_") || entry.path().extension() != ".h") continue;
    ++headers;
    for (const std::string& name : declared_in(entry.path())) {
      declared.insert(name);
      EXPECT_TRUE(covered.count(name) || exempt.count(name))
          << name << " of " << file << " is not in the op table (tests/op_table_*.cpp)";
    }
  }
  EXPECT_GE(headers, 3);
  EXPECT_GT(declared.size(), 100u) << "the declarations are not recognised any more";
  for (const auto& [name, reason] : exempt) {
    EXPECT_TRUE(declared.count(name)) << name << " is exempt, but nobody declares it";
    EXPECT_FALSE(covered.count(name)) << name << " is exempt, but has a row";
  }
}

TEST(OpTableCoverage, names_of_rows_are_unique) {
  std::set<std::string> names;
  for (const Row& row : table().rows()) EXPECT_TRUE(names.insert(row.name).second) << row.name;
}

}  // namespace
}  // namespace tarn::optable

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tarn::optable::table().register_tests();
  return RUN_ALL_TESTS();
}
