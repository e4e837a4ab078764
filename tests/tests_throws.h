// tests_throws.h - EXPECT_THROWS_WITH: a statement throws this type, and its text holds this part.
#pragma once

#include <string>

#include <gtest/gtest.h>

#define EXPECT_THROWS_WITH(statement, Type, part)                                       \
  try {                                                                                 \
    statement;                                                                          \
    ADD_FAILURE() << #statement " threw nothing; expected \"" << part << "\"";          \
  } catch (const Type& error) {                                                         \
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)                  \
        << #statement " threw \"" << error.what() << "\"; expected \"" << part << "\""; \
  }
