// mutation_runtime.cpp - which mutant is on (TARN_MUTANT=n), and which ones each test reaches.
//
// TARN_MUTANT_REACHED=FILE: a line is added for each test, "name, milliseconds, mutants...", with
// tabs between.
#include <cstdlib>
#include <fstream>

#include "mutation.h"
#include <gtest/gtest.h>

constexpr int kMost = 4096;

extern "C" {
int tarn_mutant_on = -1;
unsigned char tarn_mutant_reached[kMost];
}

namespace {

class Recorder : public testing::EmptyTestEventListener {
 public:
  explicit Recorder(const char* path) : file_(path, std::ios::app) {}

  void OnTestStart(const testing::TestInfo&) override {
    for (unsigned char& reached : tarn_mutant_reached) reached = 0;
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    file_ << test.test_suite_name() << "." << test.name() << "\t" << test.result()->elapsed_time();
    for (int n = 0; n < kMost; ++n) {
      if (tarn_mutant_reached[n]) file_ << "\t" << n;
    }
    file_ << std::endl;
  }

 private:
  std::ofstream file_;
};

const bool set_up = [] {
  if (const char* number = std::getenv("TARN_MUTANT")) tarn_mutant_on = std::atoi(number);
  if (const char* path = std::getenv("TARN_MUTANT_REACHED")) {
    testing::UnitTest::GetInstance()->listeners().Append(new Recorder(path));
  }
  return true;
}();

}  // namespace
